"""Debian's chromium, driven by selenium."""

import json
import shutil
import time

from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By

INSTALL = "apt-get install -y chromium chromium-driver"
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    # Pages are drawn and timers run although another window is in front.
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
)


def find_chromium():
    """The paths of the browser and of its driver, or None."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


class Browser:
    """A headless browser; `page` opens a page in a window of its own.

    Args:
        paths: What `find_chromium` returns.
    """

    def __init__(self, paths):
        path, driver_path = paths
        options = webdriver.ChromeOptions()
        options.binary_location = path
        for flag in _FLAGS:
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
        self.driver = webdriver.Chrome(options, webdriver.ChromeService(driver_path))
        self._events = []

    def close(self):
        self.driver.quit()

    def page(self, url, width=1280, height=800, color_scheme="light", latency=0):
        return Page(self, url, width, height, color_scheme, latency)

    def events(self, window, method):
        """The parameters of a window's DevTools events of a kind so far."""
        self._events += [json.loads(entry["message"]) for entry in self.driver.get_log("performance")]
        messages = [event["message"] for event in self._events if event["webview"] == window]
        return [message["params"] for message in messages if message["method"] == method]


class Page:
    """A page of a size and colour scheme, whose requests take `latency` ms at least."""

    def __init__(self, browser, url, width, height, color_scheme, latency):
        self._browser = browser
        self._driver = browser.driver
        self._driver.switch_to.new_window("window")
        self._driver.get_log("browser")  # what earlier pages said
        self._window = self._driver.current_window_handle
        is_phone = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if is_phone else 1,
            mobile=is_phone,
        )
        scheme = {"name": "prefers-color-scheme", "value": color_scheme}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        if latency:
            unlimited = {"downloadThroughput": -1, "uploadThroughput": -1}
            self.call("Network.emulateNetworkConditions", offline=False, latency=latency, **unlimited)
        self.open(url)

    def switch(self):
        """Makes this page the one that the driver's commands go to."""
        self._driver.switch_to.window(self._window)

    def close(self):
        self.switch()
        self._driver.close()
        self._driver.switch_to.window(self._driver.window_handles[0])

    def call(self, method, **parameters):
        """Sends a command of the DevTools protocol."""
        self.switch()
        return self._driver.execute_cdp_cmd(method, parameters)

    def open(self, url):
        self.switch()
        self._driver.get(url)

    def reload(self):
        self.switch()
        self._driver.refresh()

    def evaluate(self, expression):
        """The value of a JavaScript expression, a promise's awaited."""
        self.switch()
        return self._driver.execute_script(f"return {expression.strip()}")

    def frame(self, url, seconds=60.0):
        """The page in a frame of this one, whose address begins with `url`, once it is loaded."""
        element = (
            f"[...document.querySelectorAll('iframe')].find(frame => frame.src.startsWith({json.dumps(url)}))"
        )
        self.wait_for(f"Boolean({element})", seconds)
        frame = Frame(self, element)
        frame.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'", seconds)
        return frame

    def wait_for(self, expression, seconds=15.0):
        """Waits until an expression is true; returns its value."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            value = self.evaluate(expression)
            if value:
                return value
            time.sleep(0.02)
        raise AssertionError(
            f"It never came true: {expression}. Text: {self.evaluate('document.body.innerText')}"
        )

    def text(self, selector):
        return self.evaluate(f"document.querySelector({json.dumps(selector)}).textContent")

    def visible(self, selector):
        """The texts of the visible elements."""
        return self.evaluate(
            f"[...document.querySelectorAll({json.dumps(selector)})].filter(e => e.checkVisibility()).map(e => e.textContent)"
        )

    def focus(self, selector):
        self.evaluate(f"document.querySelector({json.dumps(selector)}).focus()")

    def type(self, text):
        """Types into what has the focus: characters, or keys such as `Keys.TAB` of selenium."""
        self.switch()
        ActionChains(self._driver).send_keys(text).perform()

    def insert(self, text):
        """Inserts a text at once, as pasting does."""
        self.call("Input.insertText", text=text)

    def point_at(self, selector):
        """Moves the pointer to the middle of an element, scrolled into view."""
        self._pointer_on(selector).perform()

    def click(self, selector):
        self._pointer_on(selector).click().perform()

    def move_pointer(self, x, y):
        """Moves the pointer to a place in the window; returns the actions, to which a click may be added."""
        self.switch()
        actions = ActionChains(self._driver, duration=0)
        actions.w3c_actions.pointer_action.move_to_location(x, y)
        actions.perform()
        return actions

    def choose_file(self, selector, path):
        """As a person who chooses a file in the dialog of an input."""
        self._find(selector).send_keys(str(path))

    def screenshot(self, path):
        self.switch()
        self._driver.save_screenshot(str(path))

    def events(self, method):
        """The parameters of this page's DevTools events so far."""
        return self._browser.events(self._window, method)

    def requests(self):
        """The bodies of the requests to models so far, in their order."""
        sent = [event["request"] for event in self.events("Network.requestWillBeSent")]
        return [request["postData"] for request in sent if request["url"].endswith(":predict")]

    def errors(self):
        """Exceptions, violations of the policy and failed loads since the last question, as text."""
        return [str(entry) for entry in self._driver.get_log("browser") if entry["level"] == "SEVERE"]

    def _find(self, selector):
        self.switch()
        return self._driver.find_element(By.CSS_SELECTOR, selector)

    def _pointer_on(self, selector):
        element = self._find(selector)
        self._driver.execute_script("arguments[0].scrollIntoView({ block: 'center' })", element)
        return ActionChains(self._driver, duration=0).move_to_element(element)


class Frame(Page):
    """A page in a frame of another: its scripts and what is in it.

    Args:
        page: The `Page` around it.
        element: JavaScript expression of the frame's element.
    """

    def __init__(self, page, element):
        self._page = page
        self._driver = page._driver
        self._element = element

    def switch(self):
        self._driver.switch_to.frame(self._page.evaluate(self._element))

"""Drives Debian's chromium over the DevTools protocol through a pipe, which needs no package."""

import base64
import json
import os
import select
import shutil
import signal
import tempfile
import time

INSTALL = "apt-get install -y chromium"
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


def find_chromium():
    """The path of the browser, or None."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Browser:
    """A headless browser; `page` opens a page in a profile of its own."""

    def __init__(self, path):
        self._folder = tempfile.mkdtemp(prefix="chromium")
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        # The browser reads its commands from descriptor 3 and answers on 4.
        self._pid = os.posix_spawn(
            path,
            [path, *_FLAGS, f"--user-data-dir={self._folder}", "about:blank"],
            os.environ,
            file_actions=[
                # Out of the way of 3 and 4 first.
                (os.POSIX_SPAWN_DUP2, to_read, 103),
                (os.POSIX_SPAWN_DUP2, to_write, 104),
                (os.POSIX_SPAWN_DUP2, 103, 3),
                (os.POSIX_SPAWN_DUP2, 104, 4),
                (os.POSIX_SPAWN_CLOSE, 103),
                (os.POSIX_SPAWN_CLOSE, 104),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            ],
            setpgroup=0,
        )
        os.close(to_read)
        os.close(to_write)
        self._buffer = b""
        self._last_id = 0
        self.events = []

    def close(self):
        os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._read)
        os.close(self._write)
        shutil.rmtree(self._folder, ignore_errors=True)

    def call(self, method, session=None, timeout=30, **parameters):
        """Sends a command and returns its result; events that come in between are kept in `events`."""
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + timeout
        while True:
            answer = self._receive(deadline)
            if answer is None:
                raise TimeoutError(f"The browser does not answer {method}.")
            if answer.get("id") == self._last_id:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def collect(self, seconds=0.0):
        """Reads the events that have come, and those of the next `seconds`."""
        deadline = time.monotonic() + seconds
        while self._receive(deadline) is not None:
            pass

    def _receive(self, deadline):
        """The next message, or None if none comes in time."""
        while b"\0" not in self._buffer:
            ready, *_ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return None
            received = os.read(self._read, 1 << 20)
            if not received:
                raise RuntimeError("The browser has ended.")
            self._buffer += received
        line, self._buffer = self._buffer.split(b"\0", 1)
        message = json.loads(line)
        if "method" in message:
            self.events.append(message)
        return message

    def page(self, url, width=1280, height=800, color_scheme="light", latency=0):
        return Page(self, url, width, height, color_scheme, latency)


class Page:
    """A page of a fresh profile, of a size and colour scheme, whose requests take `latency` ms at least."""

    def __init__(self, browser, url, width, height, color_scheme, latency):
        self._browser = browser
        self._context = browser.call("Target.createBrowserContext")["browserContextId"]
        target = browser.call("Target.createTarget", url="about:blank", browserContextId=self._context)
        attached = browser.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        is_phone = width < 600
        self.call(
            *("Emulation.setDeviceMetricsOverride",),
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

    def close(self):
        self._browser.call("Target.disposeBrowserContext", browserContextId=self._context)

    def call(self, method, **parameters):
        return self._browser.call(method, self._session, **parameters)

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.wait_for(f"location.href.startsWith({json.dumps(url)}) && document.readyState === 'complete'")

    def reload(self):
        self.call("Page.reload")

    def evaluate(self, expression):
        """The value of a JavaScript expression, a promise's awaited."""
        options = {"returnByValue": True, "awaitPromise": True, "userGesture": True}
        answer = self.call("Runtime.evaluate", expression=expression, **options)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def frame(self, url, seconds=60.0):
        """The page in a frame of this one, whose address begins with `url`, once it is loaded."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for target in self._browser.call("Target.getTargets")["targetInfos"]:
                if target["type"] == "iframe" and target["url"].startswith(url):
                    return Frame(self._browser, target["targetId"])
            self._browser.collect(0.05)
        raise AssertionError(f"There is no frame of {url}.")

    def wait_for(self, expression, seconds=15.0):
        """Waits until an expression is true; returns its value."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            value = self.evaluate(expression)
            if value:
                return value
            self._browser.collect(0.02)
        raise AssertionError(
            f"It never came true: {expression}. Text: {self.evaluate('document.body.innerText')}"
        )

    def text(self, selector):
        return self.evaluate(f"document.querySelector({json.dumps(selector)}).textContent")

    def focus(self, selector):
        self.evaluate(f"document.querySelector({json.dumps(selector)}).focus()")

    def type(self, text):
        """Types into what has the focus, key by key as far as the page can tell."""
        for character in text:
            self.call("Input.insertText", text=character)

    def key(self, name, code, text=None, modifiers=0):
        key = {"key": name, "code": name, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        self.call("Input.dispatchKeyEvent", type="keyDown", **key, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **key)

    def point_at(self, selector):
        """Moves the pointer to the middle of an element, scrolled into view."""
        x, y = self.evaluate(
            f"""(() => {{
              const element = document.querySelector({json.dumps(selector)});
              element.scrollIntoView({{block: "center"}});
              const box = element.getBoundingClientRect();
              return [box.left + box.width / 2, box.top + box.height / 2];
            }})()"""
        )
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        return {"x": x, "y": y, "button": "left", "clickCount": 1}

    def click(self, selector):
        place = self.point_at(selector)
        self.call("Input.dispatchMouseEvent", type="mousePressed", **place)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", **place)

    def choose_file(self, selector, path):
        """As a person who chooses a file in the dialog of an input."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        found = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", files=[str(path)], nodeId=found)

    def screenshot(self, path, whole=False):
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def events(self, method):
        """The parameters of this page's events so far."""
        self._browser.collect()
        return [
            event["params"]
            for event in self._browser.events
            if event["method"] == method and event.get("sessionId") == self._session
        ]

    def requests(self):
        """The bodies of the requests to models so far, in their order."""
        sent = [event["request"] for event in self.events("Network.requestWillBeSent")]
        return [request["postData"] for request in sent if request["url"].endswith(":predict")]

    def errors(self):
        """Exceptions, violations of the policy and failed loads, as text."""
        thrown = [str(event["exceptionDetails"]) for event in self.events("Runtime.exceptionThrown")]
        logged = [event["entry"] for event in self.events("Log.entryAdded")]
        return thrown + [str(entry) for entry in logged if entry["level"] == "error"]


class Frame(Page):
    """A page in a frame: its scripts and its console, not its size."""

    def __init__(self, browser, target_id):
        self._browser = browser
        attached = browser.call("Target.attachToTarget", targetId=target_id, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Runtime", "Log"):  # both tell what was there before
            self.call(f"{domain}.enable")
        self.wait_for("document.readyState === 'complete'")

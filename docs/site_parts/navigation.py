"""Makes the sidebar once for each folder, for the pages that the sidebar does not list: 700 pages share some 50 sidebars."""


def _share_sidebar(app, page, template, context, doctree):
    listed = {app.config.root_doc}.union(*app.env.toctree_includes.values())
    if page in listed or "toctree" not in context:
        return
    make = context["toctree"]
    folder = page.rpartition("/")[0]
    sidebars = app.sidebars_of_unlisted_pages

    def toctree(**options):
        # Links are relative to the folder, and no entry is that of the page.
        key = (folder, *sorted(options.items()))
        if key not in sidebars:
            sidebars[key] = make(**options)
        return sidebars[key]

    context["toctree"] = toctree


def setup(app):
    app.sidebars_of_unlisted_pages = {}
    # The theme asks for the sidebar at the usual priority of 500.
    app.connect("html-page-context", _share_sidebar, priority=400)
    return {"parallel_read_safe": True}

"""Ways in which a script may look for a package, or import it, before it uses it; FRAMEWORK stands for the name.

Each is the beginning of a script. Modules of the standard library that no other module imports are imported where
another import must follow.
"""

from __future__ import annotations

from textwrap import dedent

#: The package is not imported afterwards.
LOOKS = {
    "find_spec": """
        import importlib.util
        for _ in range(3):
            assert importlib.util.find_spec("FRAMEWORK") is not None
    """,
    "find_spec in a thread": """
        import importlib.util, threading
        thread = threading.Thread(target=importlib.util.find_spec, args=("FRAMEWORK",))
        thread.start()
        thread.join()
    """,
    "all finders asked": """
        import sys
        for finder in sys.meta_path:
            finder.find_spec("FRAMEWORK", None)
    """,
    "metadata": """
        import importlib.metadata
        try:
            importlib.metadata.version("FRAMEWORK")
        except importlib.metadata.PackageNotFoundError:
            pass
        list(importlib.metadata.distributions())
    """,
    "pkgutil": """
        import pkgutil
        assert "FRAMEWORK" in {each.name for each in pkgutil.iter_modules()}
    """,
    "look at the loader": """
        import copy, importlib.machinery, importlib.util
        loader = importlib.util.find_spec("FRAMEWORK").loader
        assert type(loader) is importlib.machinery.SourceFileLoader
        assert copy.copy(loader).get_code("FRAMEWORK") is not None
    """,
    "module that is never executed": """
        import importlib.util
        importlib.util.module_from_spec(importlib.util.find_spec("FRAMEWORK"))
    """,
    "lazy module that is never used": """
        import importlib.util, sys
        spec = importlib.util.find_spec("FRAMEWORK")
        spec.loader = importlib.util.LazyLoader(spec.loader)
        sys.modules["FRAMEWORK"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["FRAMEWORK"])
        import colorsys
        del sys.modules["FRAMEWORK"]
    """,
    "import that is blocked": """
        import sys
        sys.modules["FRAMEWORK"] = None
        try:
            import FRAMEWORK
            raise AssertionError
        except ImportError:
            del sys.modules["FRAMEWORK"]
    """,
    "imports that fail in a finder": """
        import sys
        class Broken:
            def find_spec(self, name, path=None, target=None):
                if name == "FRAMEWORK":
                    raise ImportError("not today")
        for place in (0, 1):
            sys.meta_path.insert(place, Broken())
            try:
                import FRAMEWORK
                raise AssertionError
            except ImportError:
                del sys.meta_path[place]
    """,
    "import that fails while the package is executed": """
        import sys
        class Broken:
            def find_spec(self, name, path=None, target=None):
                if name.startswith("FRAMEWORK."):
                    raise ImportError("not today")
        sys.meta_path.insert(0, Broken())
        try:
            import FRAMEWORK
            raise AssertionError
        except ImportError:
            del sys.meta_path[0]
        assert "FRAMEWORK" not in sys.modules
    """,
    "stub": """
        import sys, types
        sys.modules["FRAMEWORK"] = types.ModuleType("FRAMEWORK")
        import colorsys
        del sys.modules["FRAMEWORK"]
    """,
}

_FINDER = """
    import importlib.machinery, importlib.util, sys
    class Finder:
        asks = False
        def find_spec(self, name, path=None, target=None):
            if name != "FRAMEWORK" or self.asks:
                return None
            self.asks = True
            try:
                return {answer}
            finally:
                self.asks = False
    sys.meta_path.insert({place}, Finder())
    import FRAMEWORK
    import colorsys
"""

#: The package is imported afterwards.
IMPORTS = {
    "import": "import FRAMEWORK",
    "import in a thread": """
        import importlib, threading
        thread = threading.Thread(target=importlib.import_module, args=("FRAMEWORK",))
        thread.start()
        thread.join()
    """,
    "lazy module": """
        import importlib.util, sys
        spec = importlib.util.find_spec("FRAMEWORK")
        spec.loader = importlib.util.LazyLoader(spec.loader)
        lazy = sys.modules["FRAMEWORK"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(lazy)
        lazy.__version__
    """,
    "import by hand": """
        import importlib.util, sys
        spec = importlib.util.find_spec("FRAMEWORK")
        sys.modules["FRAMEWORK"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["FRAMEWORK"])
    """,
    "import by hand, past all finders": """
        import importlib.machinery, importlib.util, sys
        spec = importlib.machinery.PathFinder.find_spec("FRAMEWORK")
        sys.modules["FRAMEWORK"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["FRAMEWORK"])
        import colorsys
    """,
    "reload": """
        import importlib, FRAMEWORK
        importlib.reload(FRAMEWORK)
    """,
    "finder in front that does not ask us": _FINDER.format(
        place=0, answer="importlib.machinery.PathFinder.find_spec(name, path, target)"
    ),
    "finder in front that asks all": _FINDER.format(place=0, answer="importlib.util.find_spec(name)"),
    "finder behind that asks all": _FINDER.format(place=1, answer="importlib.util.find_spec(name)"),
}


def script(way: str, framework: str) -> str:
    """The beginning of a script."""
    return dedent(way).strip().replace("FRAMEWORK", framework) + "\n"

"""A hook of MkDocs: what a page links to outside of docs/ becomes a page of the site.

In the repository `[example](../examples/redis_pool.py)` leads to the file; on the site, to a page
that shows it. So the same text is right in both places, and a link that leads nowhere is still a
warning. Where a docstring names a page, such as `docs/pool.md`, the reference links to it.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<!!)(\[[^\]]*\]\()([^)\s]+)(\))")
PICTURE = re.compile(r"^(!\[[^\]]*\]\()(\S+\.svg)(\))$", re.MULTILINE)
ALWAYS = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
NAMED = re.compile(r"<code>docs/([\w/-]+)\.md</code>")  # in a docstring
LANGUAGES = {".py": "python", ".c": "c", ".h": "c", ".sh": "sh", ".toml": "toml"}


def on_files(files: Files, config: Any) -> Files:
    """Add the files that pages link to, and those that these link to."""
    waiting = [*ALWAYS]
    for file in [*files.documentation_pages()]:
        text = Path(str(file.abs_src_path)).read_text(encoding="utf-8")
        waiting += outside(text, f"docs/{file.src_uri}")
    done: set[str] = set()
    while waiting:
        path = waiting.pop()
        if path in done:
            continue
        done.add(path)
        text = (ROOT / path).read_text(encoding="utf-8")
        if path.endswith(".md"):
            waiting += outside(text, path)
        else:
            language = LANGUAGES.get(Path(path).suffix, "text")
            text = f"# {path}\n\n````{language}\n{text}````\n"
        files.append(File.generated(config, page_of(path), content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Let the links to such files lead to their pages, and pictures to themselves, in full size."""
    source = source_of(page.file.src_uri)

    def replace(match: re.Match[str]) -> str:
        target, hash_, anchor = match[2].partition("#")
        path = resolve(target, source)
        if path is None:
            return match[0]
        page_uri = path.removeprefix("docs/") if path.startswith("docs/") else page_of(path)
        relative = posixpath.relpath(page_uri, posixpath.dirname(page.file.src_uri) or ".")
        return f"{match[1]}{relative}{hash_}{anchor}{match[3]}"

    markdown = PICTURE.sub(r"[\1\2\3](\2)", markdown)
    return LINK.sub(replace, markdown)


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Let the pages that docstrings name be links."""

    def replace(match: re.Match[str]) -> str:
        file = files.get_file_from_path(f"{match[1]}.md")
        if file is None or file.page is None:
            raise ValueError(f"a docstring names docs/{match[1]}.md, which is not there")
        return f'<a href="{file.url_relative_to(page.file)}">{file.page.title}</a>'

    return NAMED.sub(replace, html) if page.file.src_uri.startswith("reference/") else html


def outside(text: str, source: str) -> list[str]:
    """The files of the repository outside of docs/ that a text links to."""
    found = (resolve(match[2].partition("#")[0], source) for match in LINK.finditer(text))
    return [path for path in found if path is not None and not path.startswith("docs/")]


def resolve(target: str, source: str) -> str | None:
    """The path in the repository of what a link leads to, if it has to be rewritten."""
    if not target or "://" in target or target.startswith("mailto:"):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if source.startswith("docs/") and path.startswith("docs/"):
        return None
    if (ROOT / path).is_dir():
        path = posixpath.join(path, "README.md")
    return path if (ROOT / path).is_file() else None


def page_of(path: str) -> str:
    """Where on the site a file of the repository is."""
    if path in ALWAYS:
        return ALWAYS[path]
    return path if path.endswith(".md") else f"{path}.md"


def source_of(page_uri: str) -> str:
    """Where in the repository a page of the site comes from."""
    for path, uri in ALWAYS.items():
        if uri == page_uri:
            return path
    if (ROOT / "docs" / page_uri).exists():
        return f"docs/{page_uri}"
    return page_uri if (ROOT / page_uri).exists() else page_uri.removesuffix(".md")

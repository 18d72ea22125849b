"""`skyinfer serve --page`: the page beside the API, off by default, behind the key, with nothing from elsewhere."""

from __future__ import annotations

import base64

import pytest
from serving import DRONE, PAINTED, serving

KEY = "a key: with a colon"
FILES = {"/": "text/html", "/ask.html": "text/html", "/ask.js": "text/javascript", "/skyinfer.js": "text/javascript",
         "/style.css": "text/css", "/icon.svg": "image/svg+xml", "/models.json": "application/json"}  # fmt: skip


def basic(password: str, name: str = "anyone") -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def test_there_is_no_page_unless_it_is_asked_for() -> None:
    with serving() as running, running.client() as client:
        assert {client.get(path).status for path in FILES} == {404}


def test_the_page_and_what_it_loads() -> None:
    with serving(page=True) as running, running.client() as client:
        for path, kind in FILES.items():
            found = client.get(path)
            assert found.status == 200
            assert found.headers["content-type"].partition(";")[0] == kind
            assert "default-src 'none'" in found.headers["content-security-policy"]
            assert found.headers["x-content-type-options"] == "nosniff"
            assert client.ask("HEAD", path).body == b""
        listing = client.get("/models.json").json
        assert listing["server"] is True
        assert client.post(DRONE | {"model": listing["models"][0]["name"]}).status == 200
        assert client.post({}, "/").status == 405
        assert client.get("/skyinfer.wasm").status == 404


def test_the_key_is_the_pages_password() -> None:
    with serving(page=True, api_key=KEY) as running, running.client() as client:
        for path in FILES:
            refused = client.get(path)
            assert refused.status == 401
            assert refused.headers["www-authenticate"].startswith("Basic ")
            assert client.get(path, authorization=basic("no")).status == 401
            assert client.get(path, authorization="Basic ?").status == 401
            assert client.get(path, authorization=basic(KEY)).status == 200
            assert client.get(path, authorization=f"Bearer {KEY}").status == 200
            assert client.get(path, x_api_key=KEY).status == 200
        # what the page sends, and what another site's page could make the browser send
        assert client.post(DRONE, authorization=basic(KEY), sec_fetch_site="same-origin").status == 200
        for site in ("cross-site", "same-site", "none"):
            assert client.post(DRONE, authorization=basic(KEY), sec_fetch_site=site).status == 401
        refused = client.post(DRONE, authorization=basic(KEY))
        assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert client.post(DRONE, authorization=f"Bearer {KEY}").status == 200


def test_without_a_page_a_password_is_no_key() -> None:
    with serving(api_key=KEY) as running, running.client() as client:
        assert client.post(DRONE, authorization=basic(KEY), sec_fetch_site="same-origin").status == 401


@pytest.mark.parametrize("model", [f"<b>&'name\"={PAINTED}"])
def test_names_of_models_are_data(model: str) -> None:
    with serving(models=(model,), page=True) as running, running.client() as client:
        assert client.get("/models.json").json["models"] == [{"name": "<b>&'name\""}]

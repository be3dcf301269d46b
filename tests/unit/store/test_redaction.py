"""What looks like a secret is not kept, and everything else is."""

import time

import pytest

from watchglass.store import redact, redacted

#: Where a secret may stand in a command line; each holds SECRET.
SECRETS = [
    ["--api-key", "SECRET"], ["--token=SECRET"], ["HF_TOKEN=SECRET"], ["--password", "SECRET"],
    ["--db_password=SECRET"], ["mysql", "-p", "SECRET"], ["--license-key", "SECRET"], ["WANDB_KEY=SECRET"],
    ["--key", "SECRET"], ["curl", "-u", "me:SECRET"],
    ["+token=SECRET"], ["++logger/api_key=SECRET"], ["logger/token=SECRET"], ["--token", "-SECRET"],
    ["-token", "SECRET"],
    ["dbpassword=SECRET"], ["hftoken=SECRET"], ["AWS_SECRET_ACCESS_KEY=SECRET/x+y=="],
    ["env", "AWS_SESSION_TOKEN=SECRET"],
    ["--aws-access-key-id", "SECRET"], ["--clientSecret=SECRET"], ["host=x user=y password=SECRET"],
    # In addresses
    ["--url", "https://me:SECRET@host/x"], ["--endpoint-url", "https://user:SECRET@minio:9000"],
    ["--endpoint-url=http://user:p@SECRET@minio:9000/b"], ["mysql://root:SE/SECRET@db/x"], ["redis://:SECRET@host"],
    ["s3://AKIA:SECRET@bucket/x"], ["https://SECRET@sentry.io/1"],
    ["https://host/hook?token=SECRET"], ["--url=https://host/hook?x=1&token=SECRET&y=2"],
    ["https://host/#access_token=SECRET"], ["https://host/a?x=1;auth=SECRET"], ["https://h/?to=x&api_key%3DSECRET"],
    ["https://a.blob.core.windows.net/c/b?sv=2022-11-02&sr=b&sig=SECRET%2Bx%3D"],
    ["https://b.s3.amazonaws.com/k?X-Amz-Credential=SECRET%2F2026&X-Amz-Expires=9&X-Amz-Signature=SECRET"],
    ["https://storage.googleapis.com/b/k?X-Goog-Signature=SECRET"], ["https://hooks.slack.com/services/T0/B0/SECRET"],
    ["DefaultEndpointsProtocol=https;AccountName=x;AccountKey=SECRET==;EndpointSuffix=core.windows.net"],
    # In other languages
    ["--config", '{"apiKey": "SECRET", "lr": 1}'], ["--config={'clientSecret': 'SECRET'}"], ["{api_key: SECRET}"],
    ["-c", "import os; os.environ['HF_TOKEN'] = 'SECRET'"], ["-c", "login(token='SECRET')"],
    ["bash", "-c", "export WANDB_API_KEY=SECRET; python t.py --token SECRET"],
    ["-H", "Authorization: Bearer SECRETSECRET"], ["curl -H 'X-Api-Key: SECRET'"],
]  # fmt: skip

#: Keys that are known by their look, wherever they stand. Made up, with the right letters and lengths, and in two parts
#: so that no scanner of repositories takes them for real ones.
KEYS = [
    "AKIA" + "IOSFODNN7EXAMPLE", "ASIA" + "IOSFODNN7EXAMPLE", "hf_" + "abcdefghijklmnopqrstuvwxyz",
    "ghp_" + "abcdefghijklmnopqrstuvwxyz012345", "github_pat_" + "11ABCDEFG0abcdefghijkl",
    "glpat-" + "abcdefghij0123456789", "sk-proj-" + "abcdefghijklmnop0123", "xoxb-" + "123456789012-abc",
    "AIza" + "SyA-abcdefghijklmnopqrstuvwxyz01234", "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
    "SG." + "abcdefghijklmnopqrst.uvwxyz", "npm_" + "abcdefghijklmnopqrstuvwxyz0123456789",
    "sk_live_" + "abcdefghijklmnop0123", "0123456789abcdef0123" + "456789abcdef01234567",
]  # fmt: skip

KEPT = [
    ["https://host/hook?x=1&y=2#z=3"], ["--token", "--lr", "-1"], ["data/tokens.txt"], ["a=b?c=d"], ["+model=gpt"],
    ["--tokenizer", "gpt2"], ["--max-tokens", "512"], ["--max_tokens=512"], ["s3://bucket/run"], ["--authors=x"],
    ["http://localhost:9000/path@v2"], ["--path", "/a/b@c"], ["git+https://github.com/x/y@main"], ["--passes", "3"],
    ["-p", "8080"], ["-p", "0.5"], ["--sort-key", "name"], ["--text_key=text"], ["-u", "me"],
    ["keyboard=us"], ['{"lr": 1, "epochs": 2}'], ["-c", "x = {'a': 1}; print('a: b')"], ["C:\\x"], ["hf_model"],
]  # fmt: skip


@pytest.mark.parametrize("words", SECRETS, ids=lambda words: words[-1][:50])
def test_secrets_are_found_wherever_they_stand(words):
    assert "SECRET" not in " ".join(redact(words)).replace("AWS_SECRET_ACCESS", "").replace("clientSecret", "")


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("place", ["{}", "--x={}", "a {} b", "print('{}')", "https://host/{}/x"])
def test_keys_are_known_by_their_look(key, place):
    assert key not in redact([place.format(key)])[0]
    assert key not in redacted(place.format(key))


@pytest.mark.parametrize("words", KEPT, ids=" ".join)
def test_what_is_no_secret_is_kept(words):
    assert redact(words) == words


def test_the_rest_is_kept():
    assert redact(["https://host/hook?x=1&token=SECRET&y=2"]) == ["https://host/hook?x=1&token=[redacted]&y=2"]
    assert redact(["--config", '{"api_key": "SECRET", "lr": 1}'])[1] == '{"api_key": "[redacted]", "lr": 1}'
    assert redact(["https://me:SECRET@host:9/x"]) == ["https://[redacted]@host:9/x"]
    assert redact(["--token", "SECRET", "--lr", "0.1"]) == ["--token", "[redacted]", "--lr", "0.1"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "part",
    [
        "a",
        "a=",
        "://",
        "-a ",
        "a:",
        "x://a:",
        "eyJ",
        "-----BEGIN PRIVATE KEY-----",
        "A",
        "a.b-c/",
        '"',
        "a' ",
        "Bearer ",
    ],
)
def test_no_text_takes_long(part):
    began = time.process_time()
    redact([part * (100_000 // len(part))])
    assert time.process_time() - began < 5

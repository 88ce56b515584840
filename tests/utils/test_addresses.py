"""Addresses with credentials."""

import pytest

from yolo_lightning.utils.addresses import redacted, refuse_secrets, resolved
from yolo_lightning.utils.stop_signals import pasteable


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sftp://user:word@host/runs", "sftp://***@host/runs"),
        ("copy to s3://key:se%2Fcret@bucket/runs failed", "copy to s3://***@bucket/runs failed"),
        ("https://host/a?token=SECRET&b=1", "https://host/a?***"),
        ("https://host/a#SECRET'", "https://host/a#***'"),
        ("https://hooks.example/services/T00/B00/aB3dE6gH9jK1mN4p", "https://hooks.example/services/T00/B00/***"),
        ("https://hc.example/5f8f1a2b-9c3d-4e5f-8a7b-6c5d4e3f2a1b", "https://hc.example/***"),
        ("tgram://123456:SECRET/42 failed", "tgram://*** failed"),
        ("slack://T00/B00/SECRET?footer=no", "slack://***"),
        ("mailto://user:word@host/a", "mailto://***@host/a"),
        ("tcp://10.0.0.1:29500", "tcp://10.0.0.1:29500"),
        ("https://user@host:8443/a", "https://***@host:8443/a"),
        ("s3://bucket/runs/ltdv2-2/step-000000040.ckpt", "s3://bucket/runs/ltdv2-2/step-000000040.ckpt"),
        ("https://docs.example/html/configuration.html", "https://docs.example/html/configuration.html"),
        ("no address: a@b, $NAME, 3 // 4", "no address: a@b, $NAME, 3 // 4"),
    ],
)
def test_credentials_are_hidden(text: str, expected: str) -> None:
    assert redacted(text) == expected
    assert redacted(expected) == expected


@pytest.mark.parametrize(
    "words",
    [
        ["fit", "--mirror", "sftp://user:SECRET@host/runs"],
        ["fit", "--mirror=sftp://user:SECRET@host/runs"],
        ["fit", "--mirror", "ftp://host/runs?sig=SECRET"],
        ["predict", "sftp://user:SECRET@host/a.ckpt"],
        ["fit", "--supervision.notify.webhook", "https://host/services/aB3dE6gH9jK1mN4pSECRET"],
        ["fit", "--supervision.notify.ping=https://host/a?key=SECRET"],
        ["fit", "--supervision", '{enabled: true, notify: {webhook: "https://usr:SECRET@host/x"}}'],
        ["fit", "--supervision.notify", "{ping: https://host/5f8f1a2b-9c3d-4e5f-8a7b-SECRET123456}"],
        ["fit", "--supervision.notify={ping: 'https://host/a?key=SECRET'}"],
        ["fit", '--config={"supervision": {"notify": {"webhook": "https:\\/\\/usr:SECRET@host"}}}'],
        ["--trainer.logger", "[{a: b}, {uri: 'postgresql://usr:SECRET@host/x'}]"],
        ["supervise", "--", "python", "train.py", "--store=sftp://usr:SECRET@host"],
    ],
)
def test_credentials_on_the_command_line_are_refused(words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"must not contain credentials.*='\$NAME'") as error:
        refuse_secrets(words)
    assert "SECRET" not in str(error.value)


def test_other_words_are_accepted() -> None:
    refuse_secrets(["fit", "--mirror", "s3://bucket/runs", "--resume", "--supervision.notify.webhook=$HOOK"])
    refuse_secrets(["fit", "--supervision.notify.ping", "http://127.0.0.1:8000/ping", "--x", "http://[::1/"])
    refuse_secrets(["fit", "--supervision", "{notify: {webhook: 'https://host:8000/hook', ping: $PING}}"])
    refuse_secrets(["fit", "--model.weights", "https://host/a.pt?download=1"])
    refuse_secrets([])


def test_pasted_command_contains_no_credentials() -> None:
    assert "SECRET" not in pasteable(["python", "-m", "yolo_lightning", "fit", "--x={a: 'https://usr:SECRET@host'}"])


def test_variable_is_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_MIRROR", "sftp://user:word@host/runs")
    assert resolved("$MY_MIRROR") == "sftp://user:word@host/runs"
    assert resolved("s3://bucket") == "s3://bucket"
    monkeypatch.delenv("MY_MIRROR")
    with pytest.raises(ValueError, match="MY_MIRROR is not set"):
        resolved("$MY_MIRROR")

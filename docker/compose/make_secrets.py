"""Create the secrets of docker/compose.yaml: random ones, each in a file of docker/secrets.

Usage: ``python docker/compose/make_secrets.py``. Existing files stay, because services already use
their content. Only this user can enter the folder; the files in it are readable, because containers
read them with other users. Needs only Python.
"""

import argparse
import base64
import json
import os
import secrets
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "secrets"


def make(folder: Path) -> list[str]:
    """Create missing secrets; return the names of the new files.

    Parameters
    ----------
    folder : Path
        Created with mode 0700 if it does not exist.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    made = []

    def keep(name: str, content: str) -> str:
        path = folder / name
        if not path.exists():
            # Atomically: half a password would be used forever.
            draft = folder / f".{name}"
            draft.write_text(content, encoding="utf-8")
            draft.chmod(0o444)
            os.replace(draft, path)
            made.append(name)
        return path.read_text(encoding="utf-8")

    def word() -> str:
        return secrets.token_urlsafe(24)

    airflow = keep("postgres_password", word())
    catalog = keep("catalog_password", word())
    keep("airflow_database_url", f"postgresql+psycopg://airflow:{airflow}@postgres/airflow")
    keep("catalog_url", f"postgresql+psycopg://memwal:{catalog}@postgres/memwal")
    keep("airflow_fernet_key", base64.urlsafe_b64encode(secrets.token_bytes(32)).decode())
    keep("airflow_jwt_secret", secrets.token_urlsafe(64))
    keep("airflow_secret_key", secrets.token_urlsafe(32))
    keep("airflow_passwords.json", json.dumps({"admin": word()}) + "\n")
    options = {
        "aws_access_key_id": keep("store_access_key", secrets.token_hex(10)),
        "aws_secret_access_key": keep("store_secret_key", word()),
        "aws_endpoint": "http://store:7070",
        "aws_region": "us-east-1",
        "allow_http": "true",
    }
    keep("lake.json", json.dumps(options, indent=1) + "\n")
    return made


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Make the secrets of docker/compose.yaml.")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="default: docker/secrets")
    folder = parser.parse_args().folder
    made = make(folder)
    print(f"{folder}: {', '.join(made) if made else 'all there'}")


if __name__ == "__main__":
    main()

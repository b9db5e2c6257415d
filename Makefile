# On a fresh Debian 12 as root each of these sets up what it needs by itself.
PY = .venv/bin/python
.PHONY: setup demo check test bench torture fsx fmt golden images cluster cluster-down e2e e2e-slow
setup: ; @.ci/setup dev
demo: ; @.ci/setup run && $(PY) -m sidemount.cli demo
check: ; @.ci/setup dev && .venv/bin/ruff format --check . && .venv/bin/ruff check . && .venv/bin/mypy && .venv/bin/lint-imports
test: ; @.ci/setup dev && $(PY) -m pytest -n 2 -m 'not slow'
bench: ; @.ci/setup dev && $(PY) -m e2e.bench
torture: ; @.ci/setup dev && $(PY) -m e2e.torture && $(PY) -m e2e.torture failures && $(PY) -m pytest -m slow
fsx: ; @.ci/setup dev && FSX_SECONDS=$${FSX_SECONDS:-40} FSX_SEED=$${FSX_SEED:-$$(date +%s)} $(PY) -m pytest -n 2 tests/sidecar/directory/test_random_operations.py -k every_byte
fmt: ; @.ci/setup dev && .venv/bin/ruff check --fix . && .venv/bin/ruff format .
golden: ; @.ci/setup dev && $(PY) -m pytest tests/webhook -k golden --update-golden
proto: ; @.ci/setup dev && $(PY) -m grpc_tools.protoc -I. --python_out=. --pyi_out=. csi/proto/csi.proto csi/proto/registration.proto
cluster: ; @.ci/setup dev && $(PY) -m e2e.cluster up --load-images
cluster-down: ; @.ci/setup dev && $(PY) -m e2e.cluster down
images: ; @.ci/setup dev && $(PY) -m e2e.cluster images
e2e: ; @.ci/setup dev && $(PY) -m pytest -o faulthandler_timeout=0 -m 'not slow' e2e/tests
e2e-slow: ; @.ci/setup dev && $(PY) -m pytest -o faulthandler_timeout=0 -m slow e2e/tests

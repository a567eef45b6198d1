#!/usr/bin/env python3
"""Stands for Apple's `container` where no Mac is: it knows the options of its command reference and rejects all others."""
import json
import os
import re
import subprocess
import sys

STORE = os.environ.get("STAND_IN_STORE") or os.path.join(os.environ["HOME"], "apple-store")
VALUES = {
    "-e", "--env", "--env-file", "--gid", "-u", "--user", "--uid", "--ulimit", "-w", "--workdir", "--cwd",
    "-c", "--cpus", "-m", "--memory", "-a", "--arch", "--cidfile", "--dns", "--dns-domain", "--dns-option",
    "--dns-search", "--entrypoint", "-k", "--kernel", "-l", "--label", "--mount", "--name", "--network", "--os",
    "-p", "--publish", "--platform", "--publish-socket", "--tmpfs", "-v", "--volume", "--scheme", "--progress",
}
FLAGS = {"-i", "--interactive", "-t", "--tty", "-d", "--detach", "--no-dns", "--rm", "--remove", "--ssh",
         "--virtualization"}


def fail(message, code=1):
    sys.stderr.write(f"Error: {message}\n")
    sys.exit(code)


def parse(words, values, flags):
    options, index = {}, 0
    while index < len(words) and words[index].startswith("-"):
        word = words[index]
        if word in flags:
            options[word] = True
            index += 1
        elif word in values:
            if index + 1 >= len(words):
                fail(f"Missing value for '{word}'", 64)
            options.setdefault(word, []).append(words[index + 1])
            index += 2
        else:
            fail(f"Unknown option '{word}'", 64)
    return options, words[index:]


def kept():
    os.makedirs(STORE, exist_ok=True)
    return {name[:-5]: json.load(open(os.path.join(STORE, name))) for name in os.listdir(STORE) if name.endswith(".json")}


def run(words):
    options, rest = parse(words, VALUES, FLAGS)
    with open(os.path.join(STORE, "argv.log"), "a") as log:
        log.write(" ".join(words) + "\n")
    if not rest:
        fail("Missing expected argument '<image>'", 64)
    image, program = rest[0], rest[1:]
    if image != "ringfence/agent:latest":
        fail(f'notFound: "image {image} not found"')
    for cpus in options.get("--cpus", []):
        if not re.fullmatch(r"[1-9][0-9]*", cpus):
            fail(f"The value '{cpus}' is invalid for '--cpus <cpus>'", 64)
    for memory in options.get("--memory", []):
        if not re.fullmatch(r"[0-9]+[KMGTP]?", memory):
            fail(f"The value '{memory}' is invalid for '--memory <memory>'", 64)
    env = {"PATH": os.environ["PATH"]}
    for path in options.get("--env-file", []):
        if os.stat(path).st_mode & 0o077:
            fail(f"{path} can be read by others", 64)
        for line in open(path):
            name, value = line.rstrip("\n").split("=", 1)
            env[name] = value
    env["PATH"] = os.environ["PATH"]
    volumes = {}
    for volume in options.get("--volume", []):
        parts = volume.split(":")
        if len(parts) not in (2, 3) or (len(parts) == 3 and parts[2] != "ro"):
            fail(f"invalid volume {volume}", 64)
        if not os.path.isdir(parts[0]):
            fail(f"{parts[0]} is not a directory")
        volumes[parts[1]] = parts[0]
    name = options["--name"][0]
    labels = dict(label.split("=", 1) for label in options.get("--label", []))
    record = os.path.join(STORE, name + ".json")
    entry = {"status": "running", "configuration": {"id": name, "labels": labels}}
    cwd = volumes[options["--workdir"][0]]
    stdin = None if "--interactive" in options else subprocess.DEVNULL
    try:
        # In a session of its own, as what the service starts is not a child of the command.
        child = subprocess.Popen(program, cwd=cwd, env=env, stdin=stdin, start_new_session=True)
    except FileNotFoundError:
        fail(f"failed to find target executable {program[0]}")
    entry["pid"] = child.pid
    json.dump(entry, open(record, "w"))
    code = child.wait()
    if os.path.exists(record) and "--rm" in options:
        os.remove(record)
    sys.exit(code if code >= 0 else 128 - code)


def main(words):
    os.makedirs(STORE, exist_ok=True)
    if os.path.exists(os.path.join(STORE, "down")):
        fail("XPC connection error: ensure container system service has been started with `container system start`")
    match words:
        case ["--version"]:
            print("container CLI version 1.0.0")
        case ["system", "status"]:
            print("apiserver is running")
        case ["image", "inspect", image]:
            if image != "ringfence/agent:latest":
                fail(f'notFound: "image {image} not found"')
            print("[]")
        case ["list", "--all", "--format", "json"]:
            print(json.dumps(list(kept().values())))
        case ["delete", "--force", name]:
            entry = kept().get(name)
            if entry is None:
                fail(f'notFound: "container {name} not found"')
            subprocess.run(["kill", "-KILL", "--", f"-{entry['pid']}"], stderr=subprocess.DEVNULL)
            os.remove(os.path.join(STORE, name + ".json"))
        case ["build", *rest]:
            options, rest = parse(rest, {"--progress", "-t", "--tag", "--build-arg", "-f", "--file"}, {"--no-cache"})
            if len(rest) != 1 or not os.path.isfile(os.path.join(rest[0], "Dockerfile")):
                fail("no Dockerfile", 64)
            print("built", options["--tag"][0])
        case ["run", *rest]:
            run(rest)
        case _:
            fail(f"Unexpected arguments {words}", 64)


main(sys.argv[1:])

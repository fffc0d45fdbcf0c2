# Connects to servers that answer with the client's address as they see it, and prints one JSON report for each.
# Arguments: a JSON list of [kind, address, port], and optionally the cgroup to be in.
import json
import os
import socket
import sys

PATIENCE = 3.0
# Prefix on which a UDP server echoes the rest, after the client's address.
ECHO = b"echo "
PAYLOAD = b"the same again\n"


def name(address):
    text = f"[{address[0]}]" if ":" in address[0] else address[0]
    return f"{text}:{address[1]}"


def same(payload):
    if payload != PAYLOAD:
        raise OSError(f"the payload changed to {payload}")


def receive(datagrams):
    answer, sender = datagrams.recvfrom(2048)
    seen, _, payload = answer.partition(b" ")
    same(payload)
    return seen.decode(), sender


def tcp(family, server):
    with socket.socket(family, socket.SOCK_STREAM) as stream:
        stream.settimeout(PATIENCE)
        stream.connect(server)
        reader = stream.makefile("rb")
        seen = reader.readline().decode().strip()
        stream.sendall(PAYLOAD)
        same(reader.readline())
        return seen, stream.getpeername(), stream.getsockname()


def connected(family, server):
    with socket.socket(family, socket.SOCK_DGRAM) as datagrams:
        datagrams.settimeout(PATIENCE)
        datagrams.connect(server)
        datagrams.send(ECHO + PAYLOAD)
        seen, sender = receive(datagrams)
        peer = datagrams.getpeername()
        if sender != peer:
            raise OSError(f"connected to {peer}, but the answer came from {sender}")
        return seen, peer, datagrams.getsockname()


def unconnected(family, server):
    with socket.socket(family, socket.SOCK_DGRAM) as datagrams:
        datagrams.settimeout(PATIENCE)
        datagrams.sendto(ECHO + PAYLOAD, server)
        return *receive(datagrams), datagrams.getsockname()


def connect(kind, address, port):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    kinds = {"tcp": tcp, "udp": connected, "unconnected udp": unconnected}
    try:
        seen, peer, own = kinds[kind](family, (address, port))
        return {"seen": seen, "peer": name(peer), "port": own[1]}
    except OSError as error:
        return {"error": str(error)}


if len(sys.argv) > 2:
    with open(os.path.join(sys.argv[2], "cgroup.procs"), "w") as processes:
        processes.write(str(os.getpid()))
print(json.dumps([connect(*target) for target in json.loads(sys.argv[1])]))

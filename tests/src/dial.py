# Dials servers that answer with the client's address as they see it, and tells what each dial has met, as JSON.
# Arguments: a JSON list of [kind, address, port], and optionally the cgroup to be in.
import json
import os
import socket
import sys

PATIENCE = 3.0
# What makes a server of datagrams send the rest back, behind the client's address.
ASK = b"echo "
PAYLOAD = b"the same again\n"


def name(address):
    text = f"[{address[0]}]" if ":" in address[0] else address[0]
    return f"{text}:{address[1]}"


def same(payload):
    if payload != PAYLOAD:
        raise OSError(f"the payload has become {payload}")


def heard(datagrams):
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
        datagrams.send(ASK + PAYLOAD)
        seen, sender = heard(datagrams)
        peer = datagrams.getpeername()
        if sender != peer:
            raise OSError(f"connected to {peer}, and answered by {sender}")
        return seen, peer, datagrams.getsockname()


def unconnected(family, server):
    with socket.socket(family, socket.SOCK_DGRAM) as datagrams:
        datagrams.settimeout(PATIENCE)
        datagrams.sendto(ASK + PAYLOAD, server)
        return *heard(datagrams), datagrams.getsockname()


def dial(kind, address, port):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    ways = {"tcp": tcp, "udp": connected, "unconnected udp": unconnected}
    try:
        seen, peer, own = ways[kind](family, (address, port))
        return {"seen": seen, "peer": name(peer), "port": own[1]}
    except OSError as error:
        return {"error": str(error)}


if len(sys.argv) > 2:
    with open(os.path.join(sys.argv[2], "cgroup.procs"), "w") as processes:
        processes.write(str(os.getpid()))
print(json.dumps([dial(*target) for target in json.loads(sys.argv[1])]))

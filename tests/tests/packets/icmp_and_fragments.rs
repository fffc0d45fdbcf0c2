//! ICMP errors, fragments, and IP headers of unusual length: packets without ports at the usual
//! place.

use abi::{Address, DropReason};
use anyhow::Result;
use verdict::Verdict;
use verdict::simulator::Place::{UplinkIn, UplinkOut};
use verdict::simulator::example::{self, FAMILIES, HOSTPORT, POD_PORT};
use verdict::simulator::frame::{Body, Frame, flag};

use crate::bench::{MOVED, on_bench};

fn udp(source: u16, destination: u16) -> Body {
    Body::Udp(source, destination, vec![7; 41])
}

fn tcp(source: u16, destination: u16) -> Body {
    Body::Tcp(source, destination, flag::SYN, vec![7; 40])
}

/// A "too big" error ("fragmentation needed" for IPv4) that quotes the IP header and `behind` bytes
/// after it.
fn error(quoted: &Frame, behind: usize) -> Body {
    let header = if quoted.source.is_v4() { 20 } else { 40 };
    let quote = quoted.packet()[..header + behind].to_vec();
    if quoted.source.is_v4() {
        Body::Icmp(3, 4, [0, 0, 5, 0xdc], quote)
    } else {
        Body::Icmp(2, 0, [0, 0, 5, 0xdc], quote)
    }
}

fn router(family: usize) -> Address {
    let mut address = example::remote();
    address.swap(0, family);
    let [a, b, c, d] = address[0].words();
    Address::from_words([a, b, c, d ^ 0x0100_0000])
}

#[test]
fn an_error_about_a_masqueraded_flow_reaches_the_pod_with_its_own_packet_inside() -> Result<()> {
    on_bench(|bench| {
        for family in FAMILIES {
            let (pod, node) = (example::pod()[family], example::node()[family]);
            let remote = example::remote()[family];
            let taken = Frame::new(example::other_pod()[family], remote, tcp(40_000, 443));
            bench.run(UplinkOut, &taken.bytes())?;
            for behind in [8, 20] {
                let sent = Frame::new(pod, remote, tcp(40_000, 443));
                let wire = sent.becoming(node, remote, tcp(MOVED, 443));
                bench.becomes(UplinkOut, &sent, &wire)?;
                let from = router(family);
                let complaint = Frame::new(from, node, error(&wire, behind));
                let translated = complaint.becoming(from, pod, error(&sent, behind));
                bench.becomes(UplinkIn, &complaint, &translated)?;
            }
        }
        Ok(())
    })
}

#[test]
fn an_icmp_error_from_a_pod_about_a_hostport_comes_from_the_node() -> Result<()> {
    on_bench(|bench| {
        for family in FAMILIES {
            let (pod, node) = (example::pod()[family], example::node()[family]);
            let client = example::remote()[family];
            let probe = Frame::new(client, node, udp(50_123, HOSTPORT));
            let inside = probe.becoming(client, pod, udp(50_123, POD_PORT));
            bench.becomes(UplinkIn, &probe, &inside)?;
            let complaint = Frame::new(pod, client, error(&inside, 49));
            let translated = complaint.becoming(node, client, error(&probe, 49));
            bench.becomes(UplinkOut, &complaint, &translated)?;
        }
        Ok(())
    })
}

/// The stack of the node reports that a packet is too large for a pod's network after `uplink_in`
/// has translated it. The error keeps its source, an address of the node.
#[test]
fn an_error_of_the_node_about_a_translated_packet_quotes_it_as_it_was_sent() -> Result<()> {
    on_bench(|bench| {
        for family in FAMILIES {
            let (pod, node) = (example::pod()[family], example::node()[family]);
            let client = example::remote()[family];
            let without_checksum = |to| Body::UdpUnchecked(50_124, to, vec![7; 41]);
            for (sent, inside) in [
                (udp(50_123, HOSTPORT), udp(50_123, POD_PORT)),
                (tcp(50_123, HOSTPORT), tcp(50_123, POD_PORT)),
                (without_checksum(HOSTPORT), without_checksum(POD_PORT)),
            ] {
                let sent = Frame::new(client, node, sent);
                let inside = sent.becoming(client, pod, inside);
                bench.becomes(UplinkIn, &sent, &inside)?;
                for behind in [8, 20, 49] {
                    let error_inside = Frame::new(node, client, error(&inside, behind));
                    let translated = error_inside.becoming(node, client, error(&sent, behind));
                    bench.becomes(UplinkOut, &error_inside, &translated)?;
                }
            }
        }
        Ok(())
    })
}

#[test]
fn an_error_of_the_node_about_a_reply_to_a_pod_quotes_it_as_it_was_sent() -> Result<()> {
    on_bench(|bench| {
        for family in FAMILIES {
            let (pod, node) = (example::pod()[family], example::node()[family]);
            let remote = example::remote()[family];
            let taken = Frame::new(example::other_pod()[family], remote, udp(40_000, 53));
            bench.run(UplinkOut, &taken.bytes())?;
            bench.run(UplinkOut, &Frame::new(pod, remote, udp(40_000, 53)).bytes())?;
            let ping = Frame::new(pod, remote, Body::echo_request(&pod, 77));
            bench.run(UplinkOut, &ping.bytes())?;
            for (reply, inside) in [
                (udp(53, MOVED), udp(53, 40_000)),
                (Body::echo_reply(&pod, 77), Body::echo_reply(&pod, 77)),
            ] {
                let reply = Frame::new(remote, node, reply);
                let inside = reply.becoming(remote, pod, inside);
                bench.becomes(UplinkIn, &reply, &inside)?;
                let error_inside = Frame::new(node, remote, error(&inside, 8));
                let translated = error_inside.becoming(node, remote, error(&reply, 8));
                bench.becomes(UplinkOut, &error_inside, &translated)?;
            }
        }
        Ok(())
    })
}

/// Returns an error of `from` that quotes a fragment, given as an IP packet.
fn error_about(from: Address, to: Address, fragment: &[u8]) -> Frame {
    let rest = [0, 0, 5, 0xb4];
    let (icmp_type, code) = if from.is_v4() { (3, 4) } else { (2, 0) };
    let quote = fragment[..fragment.len().min(500)].to_vec();
    Frame::new(from, to, Body::Icmp(icmp_type, code, rest, quote))
}

#[test]
fn errors_of_the_node_about_fragments_quote_them_as_they_were_sent() -> Result<()> {
    on_bench(|bench| {
        for family in FAMILIES {
            let (pod, node) = (example::pod()[family], example::node()[family]);
            let client = example::remote()[family];
            let large = |to| Body::Udp(50_125, to, vec![7; 2880]);
            let sent = Frame::new(client, node, large(HOSTPORT));
            let inside = sent.becoming(client, pod, large(POD_PORT));
            let sent = sent.fragments(0x91, 1448);
            let inside = inside.fragments(0x91, 1448);
            for (sent, inside) in sent.iter().zip(&inside) {
                bench.turns_into(UplinkIn, sent, inside)?;
            }
            for (sent, inside) in sent.iter().zip(&inside) {
                let error_inside = error_about(node, client, &inside[14..]);
                let translated = error_about(node, client, &sent[14..]);
                bench.becomes(UplinkOut, &error_inside, &translated)?;
            }
        }
        Ok(())
    })
}

#[test]
fn icmp_errors_about_unknown_flows_pass_unchanged() -> Result<()> {
    on_bench(|bench| {
        for family in FAMILIES {
            let (node, remote) = (example::node()[family], example::remote()[family]);
            let own = Frame::new(node, remote, tcp(40_000, 443));
            let complaint = Frame::new(router(family), node, error(&own, 8));
            bench.passes(UplinkIn, &complaint)?;
            let pod = example::pod()[family];
            let spoofed = Frame::new(pod, node, error(&own, 8));
            bench.drops(UplinkIn, &spoofed, DropReason::SpoofedFromOutside)?;
        }
        Ok(())
    })
}

#[test]
fn icmp_errors_about_hostports_without_a_flow_are_dropped() -> Result<()> {
    on_bench(|bench| {
        for family in FAMILIES {
            let (node, remote) = (example::node()[family], example::remote()[family]);
            for sent in [tcp(HOSTPORT, 443), udp(HOSTPORT, 443)] {
                let forged = Frame::new(node, remote, sent);
                let error = Frame::new(router(family), node, error(&forged, 8));
                bench.drops(UplinkIn, &error, DropReason::ErrorWithoutFlow)?;
            }
            let of_pod = Frame::new(example::pod()[family], remote, tcp(HOSTPORT, 443));
            let error = Frame::new(router(family), node, error(&of_pod, 8));
            bench.passes(UplinkIn, &error)?;
        }
        Ok(())
    })
}

#[test]
fn an_error_about_an_echo_request_is_translated_back() -> Result<()> {
    on_bench(|bench| {
        for family in FAMILIES {
            let (pod, node) = (example::pod()[family], example::node()[family]);
            let remote = example::remote()[family];
            let ping = Frame::new(pod, remote, Body::echo_request(&pod, 77));
            let wire = ping.becoming(node, remote, ping.body.clone());
            bench.becomes(UplinkOut, &ping, &wire)?;
            let complaint = Frame::new(router(family), node, error(&wire, 8));
            let translated = complaint.becoming(complaint.source, pod, error(&ping, 8));
            bench.becomes(UplinkIn, &complaint, &translated)?;
        }
        Ok(())
    })
}

#[test]
fn later_fragments_are_translated_like_the_first() -> Result<()> {
    on_bench(|bench| {
        for family in FAMILIES {
            let (pod, node) = (example::pod()[family], example::node()[family]);
            let remote = example::remote()[family];
            // Another pod has the port, so that the first fragment's source port changes as well.
            let taken = Frame::new(example::other_pod()[family], remote, udp(40_000, 53));
            bench.run(UplinkOut, &taken.bytes())?;
            let bodies = [
                (udp(40_000, 53), udp(MOVED, 53)),
                (Body::echo_request(&pod, 9), Body::echo_request(&pod, 9)),
            ];
            for (body, moved) in bodies {
                let out = Frame::new(pod, remote, body);
                let wire = out.becoming(node, remote, moved);
                let expected = wire.fragments(0x77, 8);
                for (fragment, expected) in out.fragments(0x77, 8).iter().zip(&expected) {
                    bench.turns_into(UplinkOut, fragment, expected)?;
                }
            }
            let back = Frame::new(remote, node, udp(53, MOVED));
            let to_pod = back.becoming(remote, pod, udp(53, 40_000));
            let expected = to_pod.fragments(0x78, 16);
            for (fragment, expected) in back.fragments(0x78, 16).iter().zip(&expected) {
                bench.turns_into(UplinkIn, fragment, expected)?;
            }
        }
        Ok(())
    })
}

#[test]
fn a_fragment_before_its_first_does_not_leave_with_a_pods_address() -> Result<()> {
    on_bench(|bench| {
        for family in FAMILIES {
            let (pod, node) = (example::pod()[family], example::node()[family]);
            let remote = example::remote()[family];
            let [_, later] = Frame::new(pod, remote, udp(40_000, 53)).fragments(0x99, 8);
            bench.drops_bytes(UplinkOut, &later, DropReason::FragmentWithoutFirst)?;
            let [_, own] = Frame::new(node, remote, udp(40_000, 53)).fragments(0x99, 8);
            bench.turns_into(UplinkOut, &own, &own)?;
            let [_, entering] = Frame::new(remote, node, udp(40_000, 53)).fragments(0x99, 8);
            assert_eq!(bench.run(UplinkIn, &entering)?.0, Verdict::Consume);
            let [_, direct] = Frame::new(remote, pod, udp(40_000, 53)).fragments(0x99, 8);
            bench.turns_into(UplinkIn, &direct, &direct)?;
        }
        Ok(())
    })
}

#[test]
fn extension_headers_are_walked_up_to_a_limit() -> Result<()> {
    on_bench(|bench| {
        let (pod, node) = (example::pod()[1], example::node()[1]);
        let remote = example::remote()[1];
        let header = |number: u8| (number, vec![0; 6]);
        let mut out = Frame::new(pod, remote, udp(40_000, 53));
        out.options = vec![
            header(0),
            header(60),
            header(43),
            header(60),
            (51, vec![0; 14]),
        ];
        let wire = out.becoming(node, remote, udp(40_000, 53));
        bench.becomes(UplinkOut, &out, &wire)?;
        let [first, later] = {
            let mut cut = out.clone();
            cut.options.truncate(3);
            let wire = cut.becoming(node, remote, udp(40_000, 53));
            let pairs: Vec<_> = cut
                .fragments(0x55, 8)
                .into_iter()
                .zip(wire.fragments(0x55, 8))
                .collect();
            [pairs[0].clone(), pairs[1].clone()]
        };
        bench.turns_into(UplinkOut, &first.0, &first.1)?;
        bench.turns_into(UplinkOut, &later.0, &later.1)?;
        out.options.push(header(60));
        bench.drops(UplinkOut, &out, DropReason::TooManyHeaders)
    })
}

#[test]
fn ipv4_options_are_skipped() -> Result<()> {
    on_bench(|bench| {
        let (pod, node, remote) = (example::pod()[0], example::node()[0], example::remote()[0]);
        let mut out = Frame::new(pod, remote, tcp(40_000, 443));
        out.options = vec![(0, vec![1; 8])];
        let wire = out.becoming(node, remote, tcp(40_000, 443));
        bench.becomes(UplinkOut, &out, &wire)
    })
}

#[test]
fn an_uplink_without_ethernet_headers_is_masqueraded() -> Result<()> {
    on_bench(|bench| {
        bench.change(|world| {
            for uplink in world.uplinks.values_mut() {
                uplink.l2_len = 0;
            }
        })?;
        for family in FAMILIES {
            let (pod, node) = (example::pod()[family], example::node()[family]);
            let remote = example::remote()[family];
            let mut out = Frame::new(pod, remote, tcp(40_000, 443));
            out.ethernet = None;
            let wire = out.becoming(node, remote, tcp(40_000, 443));
            bench.becomes(UplinkOut, &out, &wire)?;
        }
        Ok(())
    })
}

//! Matches as iptables writes them.

use super::*;

fn numbers(numbers: &[u16]) -> Vec<u8> {
    numbers.iter().flat_map(|it| it.to_ne_bytes()).collect()
}

/// Returns `struct xt_tcp`.
fn tcp(ports: [u16; 4], [mask, value, inverted]: [u8; 3]) -> Vec<u8> {
    [numbers(&ports), vec![0, mask, value, inverted]].concat()
}

fn port(source: bool, ranges: &[(u16, u16)], negated: bool) -> Condition {
    Condition::Port {
        source,
        ranges: ranges.to_vec(),
        negated,
    }
}

#[test]
fn ports_of_tcp_and_udp_are_conditions() {
    const ALL: u16 = u16::MAX;
    let of = |ports, flags| condition("tcp", 0, &tcp(ports, flags));
    assert_eq!(of([0, ALL, 0, ALL], [0; 3]), None);
    assert_eq!(
        of([0, ALL, 80, 80], [0; 3]),
        Some(port(false, &[(80, 80)], false))
    );
    assert_eq!(
        of([1, 1024, 0, ALL], [0, 0, 1]),
        Some(port(true, &[(1, 1024)], true))
    );
    assert_eq!(of([1, 1, 80, 80], [0; 3]), Some(Condition::Other));
    assert_eq!(of([0, ALL, 80, 80], [0x17, 2, 0]), Some(Condition::Other));
    let udp = [numbers(&[0, ALL, 53, 54]), vec![2, 0]].concat();
    assert_eq!(
        condition("udp", 0, &udp),
        Some(port(false, &[(53, 54)], true))
    );
    assert_eq!(condition("udp", 0, &[0; 4]), Some(Condition::Other));
}

#[test]
fn lists_of_ports_are_conditions() {
    let of = |info: &[u8]| condition("multiport", 1, info);
    assert_eq!(
        of(&to_ports((80, 80))),
        Some(port(false, &[(80, 80)], false))
    );
    assert_eq!(
        of(&to_ports((80, 90))),
        Some(port(false, &[(80, 90)], false))
    );
    let mut either = to_ports((80, 80));
    either[0] = 2;
    assert_eq!(of(&either), Some(Condition::Other));
    assert_eq!(of(&[1]), Some(Condition::Other));
}

#[test]
fn destinations_of_the_node_are_a_condition() {
    let of = |source, destination, flags: u32| {
        let types = numbers(&[source, destination]);
        condition(
            "addrtype",
            1,
            &[types, flags.to_ne_bytes().to_vec()].concat(),
        )
    };
    let local = |negated| Some(Condition::LocalDestination { negated });
    assert_eq!(of(0, 4, 0), local(false));
    assert_eq!(of(0, 4, 2), local(true));
    for (source, destination, flags) in [(4, 4, 0), (0, 2, 0), (0, 4, 4)] {
        assert_eq!(of(source, destination, flags), Some(Condition::Other));
    }
}

#[test]
fn an_inverted_condition_on_tcp_flags_is_met_by_established_connections() {
    // `--syn` and `! --syn`.
    for (inverted, established) in [(0, false), (4, true)] {
        let info = tcp([0, u16::MAX, 0, u16::MAX], [0x17, 2, inverted]);
        let state = Statement::State {
            established,
            new: false,
        };
        assert_eq!(
            statements("tcp", &info),
            [Statement::Named("match tcp".to_owned()), state]
        );
    }
}

//! Tests of the IPAM driver: its rules, and its laws by random sequences.

use proptest::prelude::*;

use super::*;

fn at(now: u64) -> Request {
    Request {
        now,
        global_id: [1, 2, 3, 4, 5],
        ..Request::default()
    }
}

fn pool(prefix: &str, sub: &str) -> RequestPool {
    RequestPool {
        address_space: LOCAL_SPACE.to_owned(),
        pool: prefix.to_owned(),
        sub_pool: sub.to_owned(),
        v6: prefix.contains(':'),
        ..RequestPool::default()
    }
}

fn wanted(pool: &str, address: &str) -> OfAddress {
    OfAddress {
        pool: pool.to_owned(),
        address: address.to_owned(),
        ..OfAddress::default()
    }
}

fn gateway(pool: &str) -> OfAddress {
    let kind = ("RequestAddressType", "com.docker.network.gateway");
    OfAddress {
        options: [kind]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        ..wanted(pool, "")
    }
}

fn id() -> Id {
    "0123456789ab".parse().unwrap()
}

/// Pools with one of this prefix, in a network, whose gateway is requested.
fn in_network(prefix: &str, sub: &str) -> Pools {
    let mut pools = Pools::default();
    pools.request(&pool(prefix, sub), &at(0)).unwrap();
    pools.request_address(&gateway(prefix), &at(0)).unwrap();
    pools.bind(&id(), [prefix].into_iter());
    pools
}

fn next(pools: &mut Pools, prefix: &str, now: u64) -> String {
    let address = pools.request_address(&wanted(prefix, ""), &at(now));
    address.map_or_else(|refused| refused.0, |own| own.to_string())
}

#[test]
fn a_pool_without_a_prefix_is_chosen_beside_used_prefixes() {
    let mut pools = Pools::default();
    let mut request = at(0);
    request.used = vec!["10.128.0.0/23".parse().unwrap()];
    let mut chosen = |v6| {
        let wanted = RequestPool { v6, ..pool("", "") };
        pools.request(&wanted, &request).unwrap().1.to_string()
    };
    assert_eq!(chosen(false), "10.128.2.0/24");
    // dockerd holds a pool that it cannot use until it has another one.
    assert_eq!(chosen(false), "10.128.3.0/24");
    assert_eq!(chosen(true), "fd01:203:405::/64");
    assert_eq!(chosen(true), "fd01:203:405:1::/64");
}

#[test]
fn a_pool_is_given_out_once_while_it_is_in_use() {
    let mut pools = Pools::default();
    let wanted = pool("10.7.0.0/24", "");
    pools.request(&wanted, &at(0)).unwrap();
    pools
        .request_address(&gateway("10.7.0.0/24"), &at(0))
        .unwrap();
    // dockerd was killed before it has created the network.
    pools.request(&wanted, &at(0)).unwrap();
    pools.bind(&id(), ["10.7.0.0/24"].into_iter());
    for overlapping in ["10.7.0.0/24", "10.7.0.0/16", "10.7.0.128/25"] {
        let refused = pools.request(&pool(overlapping, ""), &at(0)).unwrap_err();
        assert!(
            refused.0.contains("overlaps with pool 10.7.0.0/24"),
            "{refused}"
        );
    }
    pools.unbind(&id());
    pools.release("10.7.0.0/24");
    pools.release("10.7.0.0/24");
    pools.request(&pool("10.7.0.0/16", ""), &at(0)).unwrap();
}

/// The agent does not learn of networks of other drivers, but their bridges are on the node.
#[test]
fn a_pool_on_the_node_is_not_given_out_again_although_no_network_of_ours_has_it() {
    let mut pools = Pools::default();
    let wanted = pool("10.7.0.0/24", "");
    let mut request = at(0);
    request.used = vec!["10.7.0.0/16".parse().unwrap()];
    pools.request(&wanted, &request).unwrap();
    pools
        .request_address(&gateway("10.7.0.0/24"), &request)
        .unwrap();
    let refused = pools.request(&wanted, &request).unwrap_err();
    assert!(
        refused.0.contains("overlaps with pool 10.7.0.0/24"),
        "{refused}"
    );
    request.used = vec!["10.8.0.0/16".parse().unwrap()];
    pools.request(&wanted, &request).unwrap();
}

/// Current dockerds release the pools of a network before they delete it, earlier ones afterwards.
#[test]
fn a_released_pool_stays_for_as_long_as_a_network_has_it() {
    let mut pools = in_network("10.7.0.0/24", "");
    pools.release("10.7.0.0/24");
    assert_eq!(next(&mut pools, "10.7.0.0/24", 0), "10.7.0.2/24");
    let wanted = pool("10.7.0.0/24", "");
    pools.request(&wanted, &at(0)).unwrap_err();
    pools.unbind(&id());
    assert_eq!(pools, Pools::default());
    let mut pools = in_network("10.7.0.0/24", "");
    pools.unbind(&id());
    assert_ne!(pools, Pools::default());
    pools.release("10.7.0.0/24");
    assert_eq!(pools, Pools::default());
}

#[test]
fn impossible_pools_are_refused() {
    let mut pools = Pools::default();
    for (prefix, sub) in [
        ("10.7.0.0/31", ""),
        ("0.0.0.0/0", ""),
        ("fd00::/127", ""),
        ("ten", ""),
        ("", "10.7.0.0/25"),
        ("10.7.0.0/24", "10.8.0.0/25"),
        ("10.7.0.0/24", "10.7.0.0/16"),
    ] {
        pools.request(&pool(prefix, sub), &at(0)).unwrap_err();
    }
    let mut other = pool("10.7.0.0/24", "");
    other.address_space = GLOBAL_SPACE.to_owned();
    assert!(
        pools
            .request(&other, &at(0))
            .unwrap_err()
            .0
            .contains(GLOBAL_SPACE)
    );
    let mut option = pool("10.7.0.0/24", "");
    option
        .options
        .insert("colour".to_owned(), "blue".to_owned());
    assert!(
        pools
            .request(&option, &at(0))
            .unwrap_err()
            .0
            .contains("colour=blue")
    );
    let family = RequestPool {
        v6: true,
        ..pool("10.7.0.0/24", "")
    };
    pools.request(&family, &at(0)).unwrap_err();
    assert_eq!(pools, Pools::default());
}

#[test]
fn addresses_follow_each_other_and_the_gateway_is_the_first() {
    let mut pools = in_network("10.7.0.0/29", "");
    let addresses: Vec<String> = (0..6).map(|_| next(&mut pools, "10.7.0.0/29", 0)).collect();
    let expected = [
        "10.7.0.2/29",
        "10.7.0.3/29",
        "10.7.0.4/29",
        "10.7.0.5/29",
        "10.7.0.6/29",
    ];
    assert_eq!(addresses[..5], expected);
    assert_eq!(addresses[5], "no free address in 10.7.0.0/29");
    pools.release_address(&wanted("10.7.0.0/29", "10.7.0.3"));
    pools.release_address(&wanted("10.7.0.0/29", "10.7.0.3"));
    assert_eq!(next(&mut pools, "10.7.0.0/29", 0), "10.7.0.3/29");
}

#[test]
fn a_range_limits_chosen_addresses_and_not_given_ones() {
    let mut pools = in_network("10.7.0.0/24", "10.7.0.128/30");
    let addresses: Vec<String> = (0..5).map(|_| next(&mut pools, "10.7.0.0/24", 0)).collect();
    assert_eq!(addresses[..2], ["10.7.0.128/24", "10.7.0.129/24"]);
    assert_eq!(addresses[4], "no free address in 10.7.0.128/30");
    let given = pools.request_address(&wanted("10.7.0.0/24", "10.7.0.9"), &at(0));
    assert_eq!(given.unwrap().to_string(), "10.7.0.9/24");
}

#[test]
fn given_addresses_are_refused_if_they_are_taken_or_outside() {
    let mut pools = in_network("10.7.0.0/24", "");
    pools
        .request_address(&wanted("10.7.0.0/24", "10.7.0.9"), &at(0))
        .unwrap();
    for address in [
        "10.7.0.9",
        "10.7.0.1",
        "10.7.0.0",
        "10.7.0.255",
        "10.8.0.1",
        "fd00::1",
        "x",
    ] {
        pools
            .request_address(&wanted("10.7.0.0/24", address), &at(0))
            .unwrap_err();
    }
    pools
        .request_address(&wanted("10.9.0.0/24", ""), &at(0))
        .unwrap_err();
}

#[test]
fn an_address_that_dockerd_has_forgotten_is_free_again_later() {
    let prefix = "10.7.0.0/24";
    let mut pools = in_network(prefix, "");
    let mine = wanted(prefix, "10.7.0.9");
    pools.request_address(&mine, &at(0)).unwrap();
    pools
        .request_address(&mine, &at(FORGOTTEN_AFTER))
        .unwrap_err();
    let mut attached = at(FORGOTTEN_AFTER + 1);
    attached.attached.insert("10.7.0.9".parse().unwrap());
    pools.request_address(&mine, &attached).unwrap_err();
    pools
        .request_address(&mine, &at(FORGOTTEN_AFTER + 1))
        .unwrap();
    // The gateway has no attachment either.
    let gateway = wanted(prefix, "10.7.0.1");
    pools
        .request_address(&gateway, &at(10 * FORGOTTEN_AFTER))
        .unwrap_err();
}

#[derive(Clone, Debug)]
enum Call {
    Any,
    Given(u8),
    Release(u8),
    Stored,
}

fn call() -> impl Strategy<Value = Call> {
    prop_oneof![
        4 => Just(Call::Any),
        2 => (0..=20_u8).prop_map(Call::Given),
        3 => (0..=20_u8).prop_map(Call::Release),
        1 => Just(Call::Stored),
    ]
}

proptest! {
    /// Whatever the calls, an address has one owner, and every address that is free is given out.
    #[test]
    fn an_address_has_one_owner_and_every_free_one_is_found(
        calls in prop::collection::vec(call(), 0..80)
    ) {
        let prefix = "10.7.0.0/28";
        let mut pools = in_network(prefix, "");
        let mut owned = BTreeSet::from(["10.7.0.1".parse::<IpAddr>().unwrap()]);
        let hosts = 14;
        for call in calls {
            match call {
                Call::Any => {
                    let got = pools.request_address(&wanted(prefix, ""), &at(0));
                    prop_assert_eq!(got.is_ok(), owned.len() < hosts);
                    if let Ok(own) = got {
                        prop_assert!((1..=14).contains(&last_byte(own.address)));
                        prop_assert!(owned.insert(own.address), "{} twice", own);
                    }
                }
                Call::Given(byte) => {
                    let address = IpAddr::from([10, 7, 0, byte]);
                    let text = address.to_string();
                    let got = pools.request_address(&wanted(prefix, &text), &at(0));
                    let is_host = (1..=14).contains(&byte);
                    prop_assert_eq!(got.is_ok(), is_host && !owned.contains(&address));
                    owned.extend(got.ok().map(|own| own.address));
                }
                Call::Release(byte) => {
                    let address = IpAddr::from([10, 7, 0, byte]);
                    pools.release_address(&wanted(prefix, &address.to_string()));
                    owned.remove(&address);
                }
                Call::Stored => {
                    let text = serde_json::to_string(&pools).unwrap();
                    prop_assert_eq!(&serde_json::from_str::<Pools>(&text).unwrap(), &pools);
                }
            }
        }
    }
}

fn last_byte(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(v4) => v4.octets()[3],
        IpAddr::V6(v6) => v6.octets()[15],
    }
}

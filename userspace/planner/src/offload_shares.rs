//! Fair shares of the offload: of the agent's time, and of the places in the offload table.
//!
//! Dynamic thresholds, as in switches whose ports share a buffer (Choudhury and Hahne, 1998): an
//! account may take another unit while it has fewer than are free. One account gets half of them,
//! and `n` accounts get an `n + 1`th each: as much is always left for another one.

use std::collections::BTreeMap;

use abi::{Address, Tuple};

/// Units that accounts share.
#[derive(Clone, Debug)]
pub struct OffloadShares {
    free: u32,
    taken: BTreeMap<Option<Address>, u32>,
}

impl OffloadShares {
    /// Creates shares of which none is taken.
    pub const fn new(units: u32) -> Self {
        Self {
            free: units,
            taken: BTreeMap::new(),
        }
    }

    /// Takes a unit, if the account has fewer than the `part`th part of those that are free.
    /// Returns whether it has taken one.
    pub fn take(&mut self, account: Option<Address>, part: u32) -> bool {
        let taken = self.taken.get(&account).copied().unwrap_or(0);
        let may = taken.saturating_mul(part) < self.free;
        if may {
            self.charge(account);
        }
        may
    }

    /// Takes a unit that the account has already.
    pub fn charge(&mut self, account: Option<Address>) {
        *self.taken.entry(account).or_default() += 1;
        self.free = self.free.saturating_sub(1);
    }
}

/// Returns the account of packets with a tuple that netfilter translates to another one, or leaves
/// as it is: the pod that sends them, else the pod that receives them, else the account of all
/// others.
pub fn offload_account(
    tuple: &Tuple,
    translated: &Tuple,
    is_pod: impl Fn(&Address) -> bool,
) -> Option<Address> {
    [tuple.source, translated.destination]
        .into_iter()
        .find(|address| is_pod(address))
}

#[cfg(test)]
mod tests {
    use abi::{Port, protocol};
    use proptest::prelude::*;

    use super::*;

    const UNITS: u32 = 1200;

    const fn pod(number: u8) -> Address {
        Address::v4([10, 244, 0, number])
    }

    /// Takes as much as possible for each account in turns; returns what each has got.
    fn fill(shares: &mut OffloadShares, accounts: u8, part: u32) -> Vec<u32> {
        let mut taken = vec![0; accounts.into()];
        for _ in 0..UNITS {
            for (number, taken) in (0..accounts).zip(&mut taken) {
                *taken += u32::from(shares.take(Some(pod(number)), part));
            }
        }
        taken
    }

    #[test]
    fn accounts_leave_as_much_as_each_of_them_has() {
        for (accounts, share) in [(1, 600), (2, 400), (3, 300), (5, 200)] {
            let mut shares = OffloadShares::new(UNITS);
            assert_eq!(
                fill(&mut shares, accounts, 1),
                vec![share; accounts.into()],
                "{accounts} accounts"
            );
        }
    }

    #[test]
    fn a_greater_part_is_left_to_units_of_another_kind() {
        let mut shares = OffloadShares::new(UNITS);
        assert_eq!(fill(&mut shares, 1, 4), [240]);
        // The same account, and then another one.
        assert_eq!(fill(&mut shares, 1, 1), [360]);
        let mut next = 0;
        while shares.take(Some(pod(9)), 1) {
            next += 1;
        }
        assert_eq!(next, 300);
    }

    #[test]
    fn units_that_an_account_has_already_are_charged_in_any_case() {
        let mut shares = OffloadShares::new(2);
        for _ in 0..3 {
            shares.charge(None);
        }
        assert!(!shares.take(Some(pod(1)), 1));
    }

    #[test]
    fn flows_are_of_the_pod_that_sends_or_else_receives_them() {
        let tuple = |source, destination| Tuple {
            source: Address::v4(source),
            destination: Address::v4(destination),
            source_port: Port::new(40_000),
            destination_port: Port::new(80),
            protocol: protocol::UDP,
            reserved: [0; 3],
        };
        let is_pod = |address: &Address| [pod(1), pod(2)].contains(address);
        let account = |tuple, translated| offload_account(&tuple, &translated, is_pod);
        let (one, two, far) = ([10, 244, 0, 1], [10, 244, 0, 2], [192, 0, 2, 2]);
        let node = tuple(far, [192, 0, 2, 1]);
        assert_eq!(account(tuple(one, two), tuple(one, two)), Some(pod(1)));
        assert_eq!(account(tuple(far, two), tuple(far, two)), Some(pod(2)));
        assert_eq!(account(node, tuple(far, two)), Some(pod(2)));
        assert_eq!(account(node, node), None);
    }

    proptest! {
        /// An account that has nothing always gets something, while accounts have taken by the
        /// rule and there are more units than accounts.
        #[test]
        fn a_new_account_gets_a_unit(
            takes in prop::collection::vec((0_u8..20, 1_u32..5), 0..3000),
            units in 100_u32..2000,
        ) {
            let mut shares = OffloadShares::new(units);
            let mut taken = 0;
            for (number, part) in takes {
                taken += u32::from(shares.take(Some(pod(number)), part));
            }
            prop_assert!(taken <= units);
            prop_assert!(shares.take(Some(pod(200)), 1));
        }
    }
}

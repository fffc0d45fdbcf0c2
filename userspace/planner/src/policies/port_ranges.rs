//! Ranges of ports as blocks: a block has the ports that share their first bits.

use std::iter;

/// Returns the fewest blocks that have exactly the ports from `first` to `last`: the first port of
/// each, and its number of significant bits.
pub(super) fn blocks(first: u16, last: u16) -> impl Iterator<Item = (u16, u8)> {
    let mut next = u32::from(first);
    let end = u32::from(last) + 1;
    iter::from_fn(move || {
        if next >= end {
            return None;
        }
        // The largest block that begins here and does not pass the end.
        let aligned = next.trailing_zeros().min(16);
        let fitting = (end - next).ilog2();
        let size = aligned.min(fitting);
        let port = u16::try_from(next).ok()?;
        next += 1 << size;
        Some((port, u8::try_from(16 - size).ok()?))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::blocks;

    #[test]
    fn ranges_of_ports_become_few_blocks() {
        let all = |first, last| blocks(first, last).collect::<Vec<_>>();
        assert_eq!(all(0, 65535), [(0, 0)]);
        assert_eq!(all(80, 80), [(80, 16)]);
        assert_eq!(all(8000, 8999).len(), 6);
        assert_eq!(all(1, 65534).len(), 30);
        assert_eq!(all(9, 8), []);
    }

    proptest! {
        #[test]
        fn each_port_of_a_range_is_in_one_block(first: u16, last: u16, port: u16) {
            let has = |(start, bits): (u16, u8)| {
                u32::from(start ^ port) >> (16 - bits) == 0
            };
            let found = blocks(first, last).filter(|block| has(*block)).count();
            prop_assert_eq!(found, usize::from((first..=last).contains(&port)));
        }
    }
}

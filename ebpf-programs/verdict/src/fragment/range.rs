//! Ranges of fragments, and how they overlap.

use abi::{Datagram, DatagramFlags, DropReason, FragmentRange, protocol};

use crate::outcome::Decision;
use crate::parse::{SCTP_HEADER, TCP_HEADER};
use crate::work::{Fragment, Headers};

/// Length of a datagram's payload in units of 8 bytes that an IP header can express.
const MOST_UNITS: u32 = 8_192;
/// Bytes of an IPv6 fragment header.
const FRAGMENT_HEADER: u32 = 8;

/// Returns the range of a fragment. All fragments but the last have a multiple of 8 bytes, none is
/// empty, and none ends behind the longest datagram. Drops a later fragment that begins within the
/// transport header of the first one: it could replace the fields behind the ports (RFC 1858, RFC
/// 3128).
#[inline(always)]
pub(super) fn range(headers: &Headers) -> Decision<FragmentRange> {
    let data = if headers.version == 6 {
        headers.fragment_header + FRAGMENT_HEADER
    } else {
        headers.l4
    };
    let length = headers.end.saturating_sub(data);
    let end = headers.fragment_start + length.div_ceil(8);
    let is_cut = headers.fragment_is_last == 0 && length % 8 != 0;
    if length == 0 || is_cut || end > MOST_UNITS {
        return Err(DropReason::Malformed);
    }
    let header = match headers.tuple.protocol {
        protocol::TCP => TCP_HEADER,
        protocol::SCTP => SCTP_HEADER,
        _ => 0,
    };
    if headers.fragment == Fragment::Later && headers.fragment_start * 8 < header {
        return Err(DropReason::OverlappingFragment);
    }
    Ok(FragmentRange {
        start: (headers.fragment_start & 0xffff) as u16,
        end: (end & 0xffff) as u16,
    })
}

/// Returns whether a range can be of a datagram whose length is known; true where it is not.
#[inline(always)]
pub(super) fn is_within(datagram: &Datagram, range: FragmentRange, is_last: bool) -> bool {
    let end = u32::from(range.end);
    datagram.units == 0 || end == datagram.units || (end < datagram.units && !is_last)
}

/// Adds a fragment's range to those that were seen. A range within one of them is a duplicate: the
/// receiver keeps the first copy, as Linux does (`inet_frag_queue_insert`). A range that overlaps
/// one of them in part is dropped (RFC 5722).
#[inline(always)]
pub(super) fn add_range(
    datagram: &mut Datagram,
    range: FragmentRange,
    is_last: bool,
) -> Decision<()> {
    let FragmentRange { mut start, mut end } = range;
    if is_last && datagram.units == 0 {
        datagram.units = u32::from(end);
    }
    if !is_within(datagram, range, is_last) {
        return Err(DropReason::OverlappingFragment);
    }
    let mut index = 0;
    while let Some(range) = range_at(datagram, index) {
        if range.start <= start && end <= range.end {
            return Ok(());
        }
        if range.start < end && start < range.end {
            return Err(DropReason::OverlappingFragment);
        }
        index += 1;
    }
    // Each loop ends with the same state, whatever it has found: the verifier walks their sum, not
    // their product.
    index = 0;
    while let Some(range) = range_at(datagram, index) {
        if range.end == start {
            start = range.start;
            empty(datagram, index);
            break;
        }
        index += 1;
    }
    index = 0;
    while let Some(range) = range_at(datagram, index) {
        if range.start == end {
            end = range.end;
            empty(datagram, index);
            break;
        }
        index += 1;
    }
    if start == 0 && u32::from(end) == datagram.units {
        datagram.flags |= DatagramFlags::COMPLETE;
    }
    index = 0;
    while let Some(range) = range_at(datagram, index) {
        if range == FragmentRange::default() {
            break;
        }
        index += 1;
    }
    // With no place left, the fragment passes: the receiver checks it as well.
    if let Some(place) = datagram.ranges.get_mut(index) {
        *place = FragmentRange { start, end };
        if index == datagram.used as usize {
            datagram.used += 1;
        }
    }
    Ok(())
}

/// Returns a range that was seen. The number of used ranges is no constant, so that the compiler
/// does not unroll loops over them: that would need more of the stack than there is.
#[inline(always)]
fn range_at(datagram: &Datagram, index: usize) -> Option<FragmentRange> {
    if index >= datagram.used as usize {
        return None;
    }
    datagram.ranges.get(index).copied()
}

/// Empties a place. Others do not move: Linux 6.1 does not know the bounds of the last one's index.
#[inline(always)]
fn empty(datagram: &mut Datagram, index: usize) {
    if let Some(range) = datagram.ranges.get_mut(index) {
        *range = FragmentRange::default();
    }
}

//! Reports dropped packets to the agent by a ring buffer, while it listens.
//!
//! Counters are in `drop_counters`. While the agent does not listen, a drop costs one more read,
//! and otherwise a comparison with the last report of its pod and reason.

use core::ptr;

use abi::{
    DropHook, DropReason, DropRecord, DroppedPacket, DroppedPacketFlags, HeldHeader, PodDropCount,
    Share,
};
use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers;
use verdict::drop_record::{Bytes, Dropped, describe, sample};
use verdict::{Lookups as _, Packet};

use crate::atomic;
use crate::drop_counters::drop_count;
use crate::kernel::Kernel;
use crate::log;
use crate::maps::{self, DROP_RECORDS, DROP_SAMPLING, Scratch};

/// Bytes of an Ethernet header.
const ETHERNET: u32 = 14;
const ETHERTYPES: [u16; 2] = [0x0800, 0x86dd];
const NANOSECONDS_PER_MILLISECOND: u64 = 1_000_000;

/// Reports the packet that a traffic control program has dropped and counted: pod and length are
/// still in the scratch memory.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn report_drop(skb: *mut __sk_buff, hook: u64, reason: u64) -> u64 {
    log::packet_dropped(skb, hook, reason);
    let kernel = Kernel::new(skb);
    let interface = kernel.hook_interface();
    let Some(work) = maps::work(Scratch::Packet) else {
        return 0;
    };
    let (pod, length) = (work.pod, work.headers.length);
    if let Some(report) = Report::begin(Scratch::Packet, pod, reason as u32, length) {
        report.record.packet.hook = hook as u8;
        report.packet(&Copied(kernel), interface);
    }
    0
}

/// A packet whose bytes are copied: it is read so seldom that a second way for bytes within reach
/// would only cost the verifier.
struct Copied(Kernel);

impl Bytes for Copied {
    #[inline(always)]
    fn ethertype(&self) -> u16 {
        Packet::ethertype(&self.0)
    }

    #[inline(always)]
    fn words<const N: usize>(&self, offset: u32) -> Option<[u32; N]> {
        self.0.copied(offset)
    }
}

/// Reports a frame that the XDP prefilter has dropped and counted.
#[inline(always)]
pub(crate) fn report_frame(frame: &impl Packet, interface: u32, dropped: Dropped) {
    let Dropped {
        reason,
        pod,
        length,
    } = dropped;
    if let Some(report) = Report::begin(Scratch::Packet, pod, reason as u32, length) {
        report.record.packet.hook = DropHook::XdpGuard as u8;
        report.packet(frame, interface);
    }
}

/// Reports a held fragment that was dropped. `scratch` is that of the program.
#[inline(always)]
pub(crate) fn report_lost(scratch: Scratch, held: &HeldHeader, reason: DropReason) {
    let Some(report) = Report::begin(scratch, held.pod, reason as u32, held.length) else {
        return;
    };
    let packet = &mut report.record.packet;
    let hook = if held.datagram.share & Share::OUTSIDE == 0 {
        DropHook::FromPod
    } else {
        DropHook::UplinkIn
    };
    packet.hook = hook as u8;
    packet.flags = DroppedPacketFlags::ADDRESSES | DroppedPacketFlags::FRAGMENT;
    packet.tuple.source = held.datagram.source;
    packet.tuple.destination = held.datagram.destination;
    packet.tuple.protocol = held.datagram.protocol as u8;
    packet.ethertype = ETHERTYPES[usize::from(!held.datagram.source.is_v4())];
    report.send();
}

/// A report that this CPU has claimed.
struct Report {
    record: &'static mut DropRecord,
    count: *mut PodDropCount,
    /// [`PodDropCount::sampled`] before and after.
    before: u64,
    after: u64,
}

impl Report {
    /// Returns a report, with all but the packet, if the agent listens and the drop is to be
    /// reported.
    #[inline(always)]
    fn begin(scratch: Scratch, pod: u32, reason: u32, length: u32) -> Option<Self> {
        let sampling = DROP_SAMPLING.get(0)?;
        if sampling.until == 0 {
            return None;
        }
        let count = drop_count(pod, reason)?;
        // SAFETY: a map's value, aligned. Other CPUs may write it meanwhile: each number is read
        // whole.
        let (packets, before) = unsafe {
            (
                ptr::read_volatile(&raw const (*count).packets),
                ptr::read_volatile(&raw const (*count).sampled),
            )
        };
        // SAFETY: the helper takes nothing.
        let now = unsafe { helpers::bpf_ktime_get_ns() };
        let sample = sample(before, packets, now / NANOSECONDS_PER_MILLISECOND, sampling)?;
        // Of several CPUs, one reports.
        // SAFETY: a map's value, aligned.
        if !unsafe { atomic::replace(&raw mut (*count).sampled, before, sample.state) } {
            return None;
        }
        let record = maps::drop_record(scratch)?;
        record.at = now;
        record.count = sample.count;
        record.reason = reason;
        record.pod = pod;
        record.generation = maps::PODS.get(pod).map_or(0, |pod| pod.generation);
        record.interface = 0;
        record.length = length;
        record.packet = DroppedPacket::default();
        Some(Self {
            record,
            count,
            before,
            after: sample.state,
        })
    }

    /// Describes the packet, and sends the report.
    #[inline(always)]
    fn packet(self, packet: &impl Bytes, interface: u32) {
        self.record.interface = interface;
        let node = Kernel::new(ptr::null_mut());
        let l2_len = node
            .uplink(interface)
            .map_or(ETHERNET, |uplink| uplink.l2_len);
        describe(packet, l2_len, &mut self.record.packet);
        self.send();
    }

    /// Sends the report. Where the buffer is full, the next such drop is reported instead.
    #[inline(always)]
    fn send(self) {
        if DROP_RECORDS.output::<DropRecord>(&*self.record, 0).is_err() {
            // SAFETY: a map's value, aligned.
            unsafe { atomic::replace(&raw mut (*self.count).sampled, self.after, self.before) };
        }
    }
}

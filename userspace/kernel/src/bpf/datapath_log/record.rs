//! Parses the text of a record: words, a colon, and `key=value` fields, as
//! `ebpf-programs/datapath/src/log.rs` writes them.

use abi::{DropHook, DropReason, LoggedVerdict, Tuple};
use model::IfName;
use tracing::Level;
use zerocopy::FromBytes as _;

/// A record of the datapath log. A value that the record does not have is `None`, or 0 for a
/// number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatapathLogRecord {
    /// Severity.
    pub level: Level,
    /// What happened.
    pub message: String,
    /// Slot of the pod that the record is about; 0 where none is known.
    pub slot: u32,
    /// Generation of the slot.
    pub generation: u32,
    /// Link of the hook.
    pub interface: Option<IfName>,
    /// The hook.
    pub hook: Option<DropHook>,
    /// Why a packet was dropped.
    pub reason: Option<DropReason>,
    /// What is done with a packet that is not dropped.
    pub verdict: Option<LoggedVerdict>,
    /// Link that a packet is redirected to.
    pub output: Option<IfName>,
    /// Tuple of the packet, or of the first packet of a new flow.
    pub tuple: Option<Tuple>,
    /// Tuple of the replies of a new flow.
    pub reply: Option<Tuple>,
    /// Tuple of the new flow that another one was evicted for.
    pub newcomer: Option<Tuple>,
}

impl DatapathLogRecord {
    /// Parses a text. `name` returns the name of the link with an index. Fields that are unknown or
    /// malformed are left out: they would be those of another version.
    pub(crate) fn parse(
        level: log::Level,
        text: &str,
        name: impl Fn(u32) -> Option<IfName>,
    ) -> Self {
        let (message, fields) = text.split_once(": ").unwrap_or((text, ""));
        let field = |key: &str| {
            let mut pairs = fields.split(' ').filter_map(|pair| pair.split_once('='));
            pairs.find(|(name, _)| *name == key).map(|(_, value)| value)
        };
        let number = |key: &str| field(key)?.parse::<u32>().ok();
        let link = |key: &str| number(key).filter(|index| *index != 0).and_then(&name);
        // Headers that were not parsed have version 0, and the tuple of another packet.
        let is_parsed = number("version") != Some(0);
        Self {
            level: level_of(level),
            message: message.to_owned(),
            slot: number("slot").unwrap_or(0),
            generation: number("generation").unwrap_or(0),
            interface: link("interface"),
            hook: number("hook").and_then(|number| {
                let mut hooks = DropHook::ALL.into_iter();
                hooks.find(|hook| u32::from(*hook as u8) == number)
            }),
            reason: number("reason").and_then(DropReason::from_number),
            verdict: number("verdict").and_then(|number| {
                let mut verdicts = LoggedVerdict::ALL.into_iter();
                verdicts.find(|verdict| *verdict as u32 == number)
            }),
            output: link("output"),
            tuple: field("tuple").filter(|_| is_parsed).and_then(tuple),
            reply: field("reply").and_then(tuple),
            newcomer: field("newcomer").and_then(tuple),
        }
    }
}

const fn level_of(level: log::Level) -> Level {
    match level {
        log::Level::Error => Level::ERROR,
        log::Level::Warn => Level::WARN,
        log::Level::Info => Level::INFO,
        log::Level::Debug => Level::DEBUG,
        log::Level::Trace => Level::TRACE,
    }
}

/// Decodes the bytes of a tuple, given in hexadecimal.
fn tuple(text: &str) -> Option<Tuple> {
    let digits = text.as_bytes();
    let mut bytes = [0; size_of::<Tuple>()];
    if digits.len() != 2 * bytes.len() {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Tuple::read_from_bytes(&bytes).ok()
}

#[cfg(test)]
mod tests {
    use abi::{Address, Port, protocol};
    use zerocopy::IntoBytes as _;

    use super::*;

    fn example() -> Tuple {
        Tuple {
            source: Address::v4([10, 244, 1, 2]),
            destination: Address::v4([192, 0, 2, 80]),
            source_port: Port::new(40_000),
            destination_port: Port::new(80),
            protocol: protocol::TCP,
            reserved: [0; 3],
        }
    }

    fn hex(tuple: &Tuple) -> String {
        let digits = tuple
            .as_bytes()
            .iter()
            .flat_map(|byte| [byte >> 4, byte & 15]);
        digits
            .filter_map(|digit| char::from_digit(digit.into(), 16))
            .collect()
    }

    fn name(index: u32) -> Option<IfName> {
        (index == 7).then(|| "vt0".parse().unwrap())
    }

    #[test]
    fn a_record_of_a_new_flow_has_both_tuples_and_its_pod() {
        let (tuple, reply) = (example(), example().reverse());
        let text = format!(
            "flow opened: slot=3 generation=9 interface=7 tuple={} reply={}",
            hex(&tuple),
            hex(&reply)
        );
        let record = DatapathLogRecord::parse(log::Level::Debug, &text, name);
        let expected = DatapathLogRecord {
            level: Level::DEBUG,
            message: "flow opened".to_owned(),
            slot: 3,
            generation: 9,
            interface: name(7),
            hook: None,
            reason: None,
            verdict: None,
            output: None,
            tuple: Some(tuple),
            reply: Some(reply),
            newcomer: None,
        };
        assert_eq!(record, expected);
    }

    #[test]
    fn a_record_of_a_packet_without_parsed_headers_has_no_tuple() {
        for (version, expected) in [(0, None), (4, Some(example()))] {
            let text = format!(
                "packet dropped: slot=0 generation=0 interface=8 hook=3 reason=1 version={version} tuple={}",
                hex(&example())
            );
            let record = DatapathLogRecord::parse(log::Level::Warn, &text, name);
            assert_eq!(record.tuple, expected, "{version}");
            assert_eq!(record.reason, Some(DropReason::Malformed));
            assert_eq!(record.hook, Some(DropHook::UplinkIn));
            assert_eq!(record.interface, None);
        }
    }

    #[test]
    fn a_record_of_another_version_is_its_text() {
        for text in ["words", "words: tuple=zz verdict=99 slot=x other=1", "a: b"] {
            let record = DatapathLogRecord::parse(log::Level::Error, text, name);
            assert!(text.starts_with(&record.message), "{record:?}");
            assert_eq!((record.slot, record.tuple), (0, None));
            assert_eq!(record.verdict, None);
        }
    }
}

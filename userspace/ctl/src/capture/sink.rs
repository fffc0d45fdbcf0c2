//! Where captured packets go: a pcapng file, or lines of text.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use anyhow::{Context as _, Result};
use pcap_file::DataLink;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use std::time::Duration;

use super::frame::{Frame, clock, line};
use super::verdicts::{Record, dropped};
use crate::render;

/// Exponent of the resolution of timestamps: nanoseconds (`if_tsresol`).
const NANOSECONDS: u8 = 9;
/// `epb_flags` of received and of sent packets.
const DIRECTION: [u32; 2] = [1, 2];
/// Number of the pod's interface in the file, and of the one for packets that it has not seen.
const INTERFACES: [u32; 2] = [0, 1];

/// The output of a capture.
pub(super) enum Sink {
    Text,
    File(PcapNgWriter<BufWriter<Box<dyn Write>>>),
}

impl Sink {
    /// Opens a pcapng file, or standard output for `-`, and describes the interface of the pod.
    pub(super) fn file(path: &Path, ifname: &str, pod: &str, longest: u32) -> Result<Self> {
        let output: Box<dyn Write> = if path == Path::new("-") {
            Box::new(io::stdout())
        } else {
            let file = File::create(path);
            Box::new(file.with_context(|| format!("cannot write {}", path.display()))?)
        };
        let mut writer = PcapNgWriter::new(BufWriter::new(output))?;
        for (name, description) in [
            (ifname, format!("interface of pod {pod}")),
            (
                "dropped",
                format!(
                    "packets of pod {pod} that were dropped before its interface or behind it, without their bytes"
                ),
            ),
        ] {
            writer.write_pcapng_block(InterfaceDescriptionBlock {
                linktype: DataLink::ETHERNET,
                snaplen: longest,
                options: vec![
                    InterfaceDescriptionOption::IfName(Cow::Borrowed(name)),
                    InterfaceDescriptionOption::IfDescription(Cow::Owned(description)),
                    InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
                ],
            })?;
        }
        let mut sink = Self::File(writer);
        sink.flush()?;
        Ok(sink)
    }

    /// Writes a record.
    pub(super) fn write(&mut self, record: &Record) -> Result<()> {
        match self {
            Self::Text => crate::print(&text(record)),
            Self::File(writer) => {
                writer.write_pcapng_block(block(record))?;
                Ok(())
            }
        }
    }

    /// Hands everything to the operating system: a reader may follow the file.
    pub(super) fn flush(&mut self) -> Result<()> {
        match self {
            Self::Text => Ok(()),
            Self::File(writer) => Ok(writer.get_mut().flush()?),
        }
    }
}

fn text(record: &Record) -> String {
    match record {
        Record::Frame(frame, comments) => line(frame, comments),
        Record::Dropped(event) => {
            let at = Duration::from_millis(event.at_ms);
            format!("{}  x  {}", clock(at), render::dropped(event, false))
        }
    }
}

fn block(record: &Record) -> EnhancedPacketBlock<'_> {
    match record {
        Record::Frame(frame, comments) => frame_block(frame, comments),
        Record::Dropped(event) => EnhancedPacketBlock {
            interface_id: INTERFACES[1],
            timestamp: Duration::from_millis(event.at_ms),
            original_len: event.length,
            data: Cow::Borrowed(&[]),
            options: vec![EnhancedPacketOption::Comment(Cow::Owned(format!(
                "{}: {}",
                dropped(event),
                render::dropped(event, false).trim_end()
            )))],
        },
    }
}

fn frame_block<'a>(frame: &'a Frame, comments: &'a [String]) -> EnhancedPacketBlock<'a> {
    let flags = EnhancedPacketOption::Flags(DIRECTION[usize::from(frame.is_sent)]);
    let comments = comments
        .iter()
        .map(|comment| EnhancedPacketOption::Comment(Cow::Borrowed(comment)));
    EnhancedPacketBlock {
        interface_id: INTERFACES[0],
        timestamp: frame.at,
        original_len: frame.length,
        data: Cow::Borrowed(&frame.bytes),
        options: comments.chain([flags]).collect(),
    }
}

#[cfg(test)]
mod tests {
    use api::DropEvent;
    use pcap_file::pcapng::{Block, PcapNgReader};

    use super::*;
    use crate::capture::frame::tests::syn;

    #[test]
    fn a_capture_file_has_interface_names_nanoseconds_directions_and_comments() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pod.pcapng");
        let mut sink = Sink::file(&path, "eth0", "default/web", 1 << 18).unwrap();
        let frame = syn(true, (40_123, 443));
        let comment = "dropped by from_pod as martian".to_owned();
        let event = DropEvent {
            at_ms: 1_790_000_000_200,
            reason: "no-port".to_owned(),
            hook: "uplink_in".to_owned(),
            length: 60,
            ..DropEvent::default()
        };
        sink.write(&Record::Frame(frame.clone(), vec![comment.clone()]))
            .unwrap();
        sink.write(&Record::Dropped(Box::new(event))).unwrap();
        sink.flush().unwrap();
        let mut reader = PcapNgReader::new(File::open(&path).unwrap()).unwrap();
        let mut packets = Vec::new();
        while let Some(block) = reader.next_block() {
            if let Block::EnhancedPacket(packet) = block.unwrap() {
                packets.push(packet.into_owned());
            }
        }
        let interfaces = reader.interfaces();
        let name = InterfaceDescriptionOption::IfName(Cow::Borrowed("eth0"));
        assert!(interfaces[0].options.contains(&name), "{interfaces:?}");
        assert_eq!(packets.len(), 2);
        assert_eq!(packets[0].data, frame.bytes);
        assert_eq!(packets[0].timestamp, frame.at);
        let comment = EnhancedPacketOption::Comment(Cow::Owned(comment));
        let sent = EnhancedPacketOption::Flags(2);
        assert_eq!(packets[0].options, [comment, sent]);
        assert_eq!((packets[1].interface_id, packets[1].original_len), (1, 60));
    }
}

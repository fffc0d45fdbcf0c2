//! A switch between guests: frames over Unix sockets, as QEMU's `stream` network has them.
//!
//! Each frame is preceded by its length. The switch learns MAC addresses; broadcast frames and
//! frames to unknown addresses are flooded. Nothing is dropped: a slow guest blocks its senders, as
//! flow control on a real wire would. The host's own network is not involved.

use std::collections::BTreeMap;
use std::io::{BufReader, Read, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context as _, Result};

/// The longest frame in bytes: more than a card without segmentation offload sends.
const LONGEST: usize = 1 << 17;

/// A MAC address.
type Mac = [u8; 6];

/// A switch that runs until its process ends.
pub(crate) struct Switch {
    /// Socket that cards connect to.
    pub(crate) socket: PathBuf,
}

/// Connected wires and learned addresses.
#[derive(Default)]
struct Ports {
    wires: Vec<Arc<Mutex<UnixStream>>>,
    known: Known,
}

/// Forwarding table: the wire of each address.
#[derive(Default)]
struct Known(BTreeMap<Mac, usize>);

impl Switch {
    /// Starts a switch on `socket`.
    pub(crate) fn start(socket: &Path) -> Result<Self> {
        let listener = UnixListener::bind(socket)
            .with_context(|| format!("no switch at {}", socket.display()))?;
        let ports = Arc::new(Mutex::new(Ports::default()));
        thread::spawn(move || {
            for wire in listener.incoming().map_while(Result::ok) {
                let ports = Arc::clone(&ports);
                // A wire fails when its guest ends.
                thread::spawn(move || plug(wire, &ports).ok());
            }
        });
        Ok(Self {
            socket: socket.to_owned(),
        })
    }
}

/// Forwards frames from `wire` until it closes.
fn plug(wire: UnixStream, ports: &Mutex<Ports>) -> Result<()> {
    let mut frames = BufReader::with_capacity(LONGEST, wire.try_clone()?);
    let own = {
        let mut ports = ports.lock().unwrap_or_else(PoisonError::into_inner);
        ports.wires.push(Arc::new(Mutex::new(wire)));
        ports.wires.len() - 1
    };
    while let Some(frame) = read(&mut frames)? {
        let ways = {
            let mut ports = ports.lock().unwrap_or_else(PoisonError::into_inner);
            let count = ports.wires.len();
            ports
                .known
                .ways(own, &frame, count)
                .into_iter()
                .map(|way| Arc::clone(&ports.wires[way]))
                .collect::<Vec<_>>()
        };
        for way in ways {
            let mut way = way.lock().unwrap_or_else(PoisonError::into_inner);
            // A guest that has ended must not keep a frame from the others.
            let _ = way.write_all(&frame);
        }
    }
    Ok(())
}

impl Known {
    /// Learns the source address of `frame`, and returns which of `wires` it is forwarded to.
    fn ways(&mut self, from: usize, frame: &[u8], wires: usize) -> Vec<usize> {
        let mac = |at: usize| frame.get(at..at + 6).and_then(|it| Mac::try_from(it).ok());
        let (Some(to), Some(sender)) = (mac(4), mac(10)) else {
            return Vec::new();
        };
        self.0.insert(sender, from);
        let ways = match self.0.get(&to) {
            Some(known) => *known..known + 1,
            None => 0..wires,
        };
        ways.filter(|way| *way != from).collect()
    }
}

/// Reads the next frame. `None` at the end of the stream, and if the length is invalid.
fn read(from: &mut impl Read) -> Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    if from.read_exact(&mut length).is_err() {
        return Ok(None);
    }
    let bytes = usize::try_from(u32::from_be_bytes(length))?;
    if bytes > LONGEST {
        return Ok(None);
    }
    let mut frame = vec![0; 4 + bytes];
    frame[..4].copy_from_slice(&length);
    from.read_exact(&mut frame[4..])?;
    Ok(Some(frame))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(to: u8, from: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, 0, 14];
        frame.extend([to; 6]);
        frame.extend([from; 6]);
        frame.extend([8, 0]);
        frame
    }

    #[test]
    fn frames_to_an_unknown_address_leave_by_all_ports_until_it_has_sent() {
        let mut known = Known::default();
        assert_eq!(known.ways(0, &frame(2, 1), 3), [1, 2]);
        assert_eq!(known.ways(1, &frame(1, 2), 3), [0]);
        assert_eq!(known.ways(2, &frame(2, 3), 3), [1]);
        // A broadcast frame, or a frame to an address on the same wire, is not sent back.
        assert_eq!(known.ways(2, &frame(0xff, 3), 3), [0, 1]);
        assert_eq!(known.ways(2, &frame(3, 3), 3), [0; 0]);
        assert_eq!(known.ways(0, &[0, 0, 0, 2, 1, 1], 3), [0; 0]);
    }

    #[test]
    fn frames_are_read_whole_until_their_end() -> Result<()> {
        let bytes = [frame(1, 2), frame(3, 4), vec![0, 0]].concat();
        let mut rest = &bytes[..];
        assert_eq!(read(&mut rest)?, Some(frame(1, 2)));
        assert_eq!(read(&mut rest)?, Some(frame(3, 4)));
        assert_eq!(read(&mut rest)?, None);
        assert_eq!(read(&mut &[0xff; 8][..])?, None, "no frame is that long");
        Ok(())
    }
}

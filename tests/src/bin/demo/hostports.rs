//! Hostports from everywhere: what the server saw and what the client saw, for every way there is.

use anyhow::Result;
use e2e::matrix::{Cell, Matrix, Origin};

use crate::screen::Screen;

/// The sections, in a sandbox of their own.
pub(crate) fn show(screen: &mut Screen) -> Result<()> {
    let matrix = Matrix::start()?;
    for origin in Origin::ALL {
        screen.section(&format!("Hostports from {}", origin.name()));
        let mut cells = matrix.dial(origin)?;
        if origin.is_on_node() {
            screen.note("SCTP: only where the kernel has sockets of it; packets of pods and of others are below");
        } else {
            cells.extend(matrix.send_sctp(origin)?);
        }
        for cell in cells {
            screen.line(label(&cell), cell.outcome);
        }
    }
    Ok(())
}

fn label(cell: &Cell) -> String {
    let (protocol, host_ip) = (cell.protocol, cell.host_ip.name());
    format!("{} {protocol}, {host_ip}", cell.dialled)
}

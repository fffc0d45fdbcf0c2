//! Lists the pods of a node with their addresses, 50 at a time. The argument is the agent's socket.

#![expect(clippy::print_stdout, reason = "it is a program for a terminal")]

use std::path::PathBuf;

use viaduct_client::{
    AttachmentView, Client, ClientError, DEFAULT_SOCKET, PageQuery, path, read_only_socket,
};

fn main() -> Result<(), ClientError> {
    let argument = std::env::args_os().nth(1);
    let socket = argument.map_or_else(|| PathBuf::from(DEFAULT_SOCKET), PathBuf::from);
    // Members of the agent's socket group may read without being root.
    let client = Client::new(&socket).or_read_only(read_only_socket(&socket));
    let mut next = Some(PageQuery::first(50));
    while let Some(query) = next {
        let reply = client.get(&query.to_path(path::ATTACHMENTS))?;
        let page: Vec<AttachmentView> = reply.decode()?;
        for pod in &page {
            println!("{}", line(pod));
        }
        next = query.next(&page);
    }
    Ok(())
}

/// Returns the pod's name, or its container ID, with its addresses.
fn line(view: &AttachmentView) -> String {
    let name = match &view.pod {
        Some(pod) => format!("{}/{}", pod.namespace, pod.name),
        None => view.container_id.clone(),
    };
    let addresses: Vec<&str> = view
        .addresses
        .iter()
        .map(|it| it.address.as_str())
        .collect();
    format!("{name} {} {}", view.ifname, addresses.join(" "))
}

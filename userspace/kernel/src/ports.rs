//! Ports of the node: reserves them with sockets, and finds their users.

pub(crate) mod reservations;
pub(crate) mod socket_list;
pub(crate) mod users;

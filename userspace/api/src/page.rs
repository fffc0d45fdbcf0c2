//! Pages of lists that may be long.

use serde::Deserialize;

use crate::{AttachmentView, Lease, PortView};

/// Query parameters of lists. Without them, the list is complete.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
pub struct PageQuery {
    /// Maximum number of items, at least 1; all if absent. A page with fewer items is the last.
    #[serde(default)]
    pub limit: Option<usize>,
    /// Last item of the page before, of which this one is the continuation: of attachments
    /// `network/containerID/ifname`, of leases that and `/address`, of host ports
    /// `host_port/protocol/host_address/attachment` with five digits. Items that are added or
    /// removed between two requests neither repeat nor hide others.
    #[serde(default)]
    pub after: Option<String>,
}

/// An item of a list that has pages.
pub trait PageItem {
    /// Returns the unique text by which pages are ordered: [`PageQuery::after`] of the next page.
    fn page_key(&self) -> String;
}

impl PageItem for AttachmentView {
    fn page_key(&self) -> String {
        format!("{}/{}/{}", self.network, self.container_id, self.ifname)
    }
}

impl PageItem for Lease {
    fn page_key(&self) -> String {
        let Self {
            network,
            address,
            container_id,
            ifname,
        } = self;
        format!("{network}/{container_id}/{ifname}/{address}")
    }
}

impl PageItem for PortView {
    fn page_key(&self) -> String {
        let port = &self.port;
        let address = port.host_address.as_deref().unwrap_or_default();
        format!(
            "{:05}/{}/{address}/{}",
            port.host_port, port.protocol, port.attachment
        )
    }
}

impl PageQuery {
    /// Returns the query of the first page of at most `limit` items.
    pub fn first(limit: usize) -> Self {
        Self {
            limit: Some(limit),
            after: None,
        }
    }

    /// Returns the query of the page behind `page`; `None` behind the last one.
    pub fn next<T: PageItem>(&self, page: &[T]) -> Option<Self> {
        let last = page.last().filter(|_| Some(page.len()) >= self.limit)?;
        Some(Self {
            limit: Some(self.limit?),
            after: Some(last.page_key()),
        })
    }

    /// Returns `path` with this query, percent-encoded.
    pub fn to_path(&self, path: &str) -> String {
        let limit = self.limit.map(|limit| format!("limit={limit}"));
        let after = self.after.as_deref().map(crate::flow::escaped);
        let after = after.map(|after| format!("after={after}"));
        let pairs: Vec<String> = limit.into_iter().chain(after).collect();
        if pairs.is_empty() {
            return path.to_owned();
        }
        format!("{path}?{}", pairs.join("&"))
    }

    /// Returns the items of this page, in the order of their keys. Without parameters, returns all
    /// of them in the order that they have.
    pub fn select<T: PageItem>(&self, mut items: Vec<T>) -> Vec<T> {
        if *self == Self::default() {
            return items;
        }
        items.sort_by_cached_key(PageItem::page_key);
        if let Some(after) = &self.after {
            items.retain(|item| item.page_key() > *after);
        }
        items.truncate(self.limit.unwrap_or(usize::MAX));
        items
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl PageItem for &str {
        fn page_key(&self) -> String {
            (*self).to_owned()
        }
    }

    #[test]
    fn pages_have_each_item_once_while_items_come_and_go() {
        let mut items = vec!["e", "a", "c", "d", "b"];
        let mut next = Some(PageQuery::first(2));
        let mut pages = Vec::new();
        while let Some(query) = next {
            let page = query.select(items.clone());
            next = query.next(&page);
            // The last item of the page is removed, and one before it is added.
            items.retain(|item| page.last() != Some(item));
            items.push("A");
            pages.push(page);
        }
        assert_eq!(pages, [vec!["a", "b"], vec!["c", "d"], vec!["e"]]);
    }

    #[test]
    fn a_list_without_page_parameters_is_complete_and_in_its_order() {
        let all = PageQuery::default();
        assert_eq!(all.select(vec!["b", "a"]), ["b", "a"]);
        assert_eq!(all.next(&["b", "a"]), None);
        assert_eq!(all.to_path("/v1/leases"), "/v1/leases");
    }

    #[test]
    fn host_ports_are_ordered_by_number_in_pages() {
        let key = |host_port| {
            let mut view = PortView::default();
            view.port.host_port = host_port;
            view.page_key()
        };
        assert!(key(80) < key(443) && key(443) < key(8_080));
    }

    #[test]
    fn the_path_of_a_page_is_percent_encoded() {
        let query = PageQuery {
            limit: Some(7),
            after: Some("net/a b/eth0".to_owned()),
        };
        let path = query.to_path("/v1/attachments");
        assert_eq!(path, "/v1/attachments?limit=7&after=net/a%20b/eth0");
    }
}

//! UCX's circular lists.

#![allow(unsafe_code, reason = "links of a list that C owns")]

use crate::abi::ListLink;

/// Adds a link at the end of a list.
///
/// # Safety
/// - `head` is the head of a list whose links are valid, and nothing else changes it now.
/// - `link` is valid as long as the list, and in no list.
pub(crate) unsafe fn push_back(head: *mut ListLink, link: *mut ListLink) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let last = (*head).prev;
        (*link).prev = last;
        (*link).next = head;
        (*last).next = link;
        (*head).prev = link;
    }
}

/// Makes a link the head of an empty list.
///
/// # Safety
/// `head` is valid and in no list.
pub(crate) unsafe fn make_empty(head: *mut ListLink) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        (*head).prev = head;
        (*head).next = head;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_added_in_order() {
        let mut links = [const { ListLink::UNLINKED }; 3];
        let [head, one, two] = &mut links;
        let (head, one, two): (*mut ListLink, *mut ListLink, *mut ListLink) = (head, one, two);
        // SAFETY: three distinct links of this test.
        unsafe {
            make_empty(head);
            push_back(head, one);
            push_back(head, two);
            assert_eq!((*head).next, one, "the first link follows the head");
            assert_eq!((*one).next, two, "then the second");
            assert_eq!((*two).next, head, "the list is circular");
            assert_eq!((*head).prev, two, "and backwards");
        }
    }
}

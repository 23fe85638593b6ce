//! Doubly linked lists through the elements of an array.

use super::chunks::Chunks;

/// No element.
const NIL: u32 = u32::MAX;

/// An element's neighbours, by index. An element is in one list at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Links {
    prev: u32,
    next: u32,
}

impl Default for Links {
    fn default() -> Self {
        Self { prev: NIL, next: NIL }
    }
}

/// An element with [`Links`].
pub(crate) trait Linked {
    fn links_mut(&mut self) -> &mut Links;
}

/// A list of elements of a [`Chunks`]. Every operation is O(1) and touches the element and its
/// neighbours only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    first: u32,
    last: u32,
}

impl List {
    pub(crate) const EMPTY: Self = Self { first: NIL, last: NIL };

    pub(crate) const fn is_empty(&self) -> bool {
        self.first == NIL
    }

    pub(crate) const fn first(&self) -> Option<u32> {
        if self.is_empty() { None } else { Some(self.first) }
    }

    /// Appends an element that is in no list.
    pub(crate) fn push_back<T: Linked>(&mut self, elements: &mut Chunks<T>, index: u32) {
        let Some(element) = elements.get_mut(index) else { return };
        *element.links_mut() = Links { prev: self.last, next: NIL };
        match elements.get_mut(self.last) {
            Some(last) => last.links_mut().next = index,
            None => self.first = index,
        }
        self.last = index;
    }

    /// Takes an element of this list out of it.
    pub(crate) fn unlink<T: Linked>(&mut self, elements: &mut Chunks<T>, index: u32) {
        let Some(element) = elements.get_mut(index) else { return };
        let Links { prev, next } = std::mem::take(element.links_mut());
        match elements.get_mut(prev) {
            Some(prev) => prev.links_mut().next = next,
            None => self.first = next,
        }
        match elements.get_mut(next) {
            Some(next) => next.links_mut().prev = prev,
            None => self.last = prev,
        }
    }

    /// Takes the first element out.
    pub(crate) fn pop_front<T: Linked>(&mut self, elements: &mut Chunks<T>) -> Option<u32> {
        let index = self.first()?;
        self.unlink(elements, index);
        Some(index)
    }

    /// Makes an element of this list the last one.
    pub(crate) fn move_to_back<T: Linked>(&mut self, elements: &mut Chunks<T>, index: u32) {
        if self.last != index {
            self.unlink(elements, index);
            self.push_back(elements, index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Element(Links);

    impl Linked for Element {
        fn links_mut(&mut self) -> &mut Links {
            &mut self.0
        }
    }

    fn drain(list: &mut List, elements: &mut Chunks<Element>) -> Vec<u32> {
        std::iter::from_fn(|| list.pop_front(elements)).collect()
    }

    #[test]
    fn order_is_kept() {
        let mut elements = Chunks::new(8);
        let mut list = List::EMPTY;
        for _ in 0..5 {
            let index = elements.push(Element::default()).unwrap();
            list.push_back(&mut elements, index);
        }
        list.unlink(&mut elements, 0);
        list.unlink(&mut elements, 4);
        list.push_back(&mut elements, 0);
        list.move_to_back(&mut elements, 2);
        list.move_to_back(&mut elements, 2);
        assert_eq!(list.first(), Some(1));
        assert_eq!(drain(&mut list, &mut elements), [1, 3, 0, 2]);
        assert!(list.is_empty());
        list.push_back(&mut elements, 4);
        assert_eq!(drain(&mut list, &mut elements), [4]);
    }
}

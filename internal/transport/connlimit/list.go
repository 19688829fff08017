package connlimit

// list is a list of connections, through links that are part of them, so that nothing is allocated for each request.
// The zero value is empty.
type list struct {
	head, tail *link
	size       int
}

// link is a connection's place in a list. Without a list it is in none.
type link struct {
	list       *list
	prev, next *link
	conn       *Conn
}

// first is the first connection; nil if the list is empty.
func (l *list) first() *Conn {
	if l.head == nil {
		return nil
	}
	return l.head.conn
}

// push puts a link at the end of the list, wherever it was before.
func (l *list) push(k *link) {
	k.remove()
	k.list, k.prev = l, l.tail
	if l.tail == nil {
		l.head = k
	} else {
		l.tail.next = k
	}
	l.tail = k
	l.size++
}

// remove takes a link out of its list, if it is in one.
func (k *link) remove() {
	l := k.list
	if l == nil {
		return
	}
	if k.prev == nil {
		l.head = k.next
	} else {
		k.prev.next = k.next
	}
	if k.next == nil {
		l.tail = k.prev
	} else {
		k.next.prev = k.prev
	}
	k.list, k.prev, k.next = nil, nil, nil
	l.size--
}

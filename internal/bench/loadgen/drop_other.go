//go:build !linux

package loadgen

import "net"

// dropper discards what a connection receives by reading it into a buffer.
type dropper struct {
	c   net.Conn
	buf []byte
}

func newDropper(c net.Conn) dropper { return dropper{c: c, buf: make([]byte, 128<<10)} }

// discard drops up to n bytes. It returns io.EOF at the end of the stream.
func (d *dropper) discard(n int64) (int64, error) {
	got, err := d.c.Read(d.buf[:min(n, int64(len(d.buf)))])
	return int64(got), err
}

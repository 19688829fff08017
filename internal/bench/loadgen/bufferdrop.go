package loadgen

import "net"

// bufferDrop discards received bytes by reading them into a buffer.
type bufferDrop struct {
	c   net.Conn
	buf []byte
}

// discard drops up to n bytes. It returns io.EOF at the end of the stream.
func (d *bufferDrop) discard(n int64) (int64, error) {
	if d.buf == nil {
		d.buf = make([]byte, 128<<10)
	}
	got, err := d.c.Read(d.buf[:min(n, int64(len(d.buf)))])
	return int64(got), err
}

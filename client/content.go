package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"connectrpc.com/connect"
)

// content reads the bytes of a stream of messages.
type content struct {
	receive func() ([]byte, error) // the next bytes; io.EOF at the end of the stream
	end     func()
	rest    []byte
	err     error // returned after rest
}

// openContent makes a call, and waits for its first message. The message is empty if the stream has none.
func openContent[Request, Message any](
	ctx context.Context, c *content, request *Request,
	call func(context.Context, *connect.Request[Request]) (*connect.ServerStreamForClient[Message], error),
	data func(*Message) []byte,
) (*Message, error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := call(ctx, connect.NewRequest(request))
	if err != nil {
		cancel()
		return nil, err
	}
	c.receive = func() ([]byte, error) {
		if stream.Receive() {
			return data(stream.Msg()), nil
		}
		if err := stream.Err(); err != nil {
			return nil, err
		}
		return nil, io.EOF
	}
	c.end = func() {
		cancel()
		_ = stream.Close() // the call was cancelled
	}
	if !c.next() && c.err != io.EOF {
		defer c.Close()
		return nil, c.err
	}
	return cmp.Or(stream.Msg(), new(Message)), nil
}

// next reads one message from the stream. At the end it sets c.err and returns false.
func (c *content) next() bool {
	if c.err != nil {
		return false
	}
	c.rest, c.err = c.receive()
	return c.err == nil
}

// Read reads bytes of the stream. It returns io.EOF only after all requested bytes, and another error for a broken
// stream.
func (c *content) Read(p []byte) (int, error) {
	for len(c.rest) == 0 {
		if len(p) == 0 {
			return 0, nil
		}
		if !c.next() {
			return 0, c.err
		}
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// WriteTo writes the remaining bytes to w, without a buffer.
func (c *content) WriteTo(w io.Writer) (int64, error) {
	var sum int64
	for {
		if len(c.rest) > 0 {
			n, err := w.Write(c.rest)
			sum, c.rest = sum+int64(n), c.rest[n:]
			if err != nil {
				return sum, err
			}
		}
		if !c.next() {
			if c.err == io.EOF {
				return sum, nil
			}
			return sum, c.err
		}
	}
}

// Close ends the call. It may be called before the end of the stream, and repeatedly.
func (c *content) Close() error {
	c.end()
	if c.err == nil {
		c.rest, c.err = nil, errors.New("packhorse: the stream is closed")
	}
	return nil
}

// fail ends the call and returns an error about its messages.
func (c *content) fail(code connect.Code, format string, args ...any) error {
	c.Close()
	return connect.NewError(code, fmt.Errorf(format, args...))
}

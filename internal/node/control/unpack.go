package control

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// maxFields is the maximum number of fields in a message, which is more than any call needs. Each element of a list
// counts. Otherwise a message of maxMessage bytes could have two million fields, and need forty times its size in
// memory.
const maxFields = 1 << 14

// protoCodec reads and writes messages in Protobuf, and refuses those with too many fields.
type protoCodec struct{}

func (protoCodec) Name() string { return "proto" }

func (protoCodec) Marshal(m any) ([]byte, error) { return proto.Marshal(m.(proto.Message)) }

// MarshalAppend lets Connect reuse its buffers.
func (protoCodec) MarshalAppend(b []byte, m any) ([]byte, error) {
	return proto.MarshalOptions{}.MarshalAppend(b, m.(proto.Message))
}

func (protoCodec) Unmarshal(b []byte, m any) error {
	for left, fields := b, 0; len(left) > 0; fields++ {
		if fields == maxFields {
			return fmt.Errorf("message with more than %d fields", maxFields)
		}
		_, _, n := protowire.ConsumeField(left)
		if n < 0 {
			break // Unmarshal has a better error
		}
		left = left[n:]
	}
	return proto.Unmarshal(b, m.(proto.Message))
}

// gzipped returns gzip for messages. Connect's own unpacks too long messages to their end, to report the length: that
// can be four gigabytes for 4 MiB. This one stops with an error.
func gzipped() connect.HandlerOption {
	return connect.WithCompression("gzip",
		func() connect.Decompressor { return &boundedGzip{} },
		func() connect.Compressor { return gzip.NewWriter(io.Discard) },
	)
}

// boundedGzip is a gzip.Reader that returns at most one byte more than the maximum length of a message.
type boundedGzip struct {
	gzip.Reader
	left int64
}

var errUnpacked = errors.New("compressed message too long")

func (g *boundedGzip) Reset(r io.Reader) error {
	g.left = maxMessage + 1
	return g.Reader.Reset(r)
}

func (g *boundedGzip) Read(p []byte) (int, error) {
	if g.left <= 0 {
		return 0, errUnpacked
	}
	n, err := g.Reader.Read(p[:min(int64(len(p)), g.left)])
	g.left -= int64(n)
	return n, err
}

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

// maxFields is how many fields a message may have, each element of a list being one: more than any call takes. A message of maxMessage could have
// two million of them otherwise, and take forty times its bytes in memory before its call could refuse it.
const maxFields = 1 << 14

// protoCodec reads and writes messages as Protobuf does, but for those with too many fields.
type protoCodec struct{}

func (protoCodec) Name() string { return "proto" }

func (protoCodec) IsBinary() bool { return true }

func (protoCodec) Marshal(m any) ([]byte, error) { return proto.Marshal(m.(proto.Message)) }

// MarshalAppend lets Connect use its own buffers again.
func (protoCodec) MarshalAppend(b []byte, m any) ([]byte, error) {
	return proto.MarshalOptions{}.MarshalAppend(b, m.(proto.Message))
}

// MarshalStable gives the same bytes for the same message.
func (protoCodec) MarshalStable(m any) ([]byte, error) {
	return proto.MarshalOptions{Deterministic: true}.Marshal(m.(proto.Message))
}

func (protoCodec) Unmarshal(b []byte, m any) error {
	for left, fields := b, 0; len(left) > 0; fields++ {
		if fields == maxFields {
			return fmt.Errorf("the message has more than %d fields", maxFields)
		}
		_, _, n := protowire.ConsumeField(left)
		if n < 0 {
			break // which Unmarshal has better words for
		}
		left = left[n:]
	}
	return proto.Unmarshal(b, m.(proto.Message))
}

// gzipped is gzip for messages. Connect's own unpacks the rest of one that is too long, to find out how long it is: four gigabytes, of the 4 MiB
// that may come. This one ends with an error.
func gzipped() connect.HandlerOption {
	return connect.WithCompression("gzip",
		func() connect.Decompressor { return &boundedGzip{} },
		func() connect.Compressor { return gzip.NewWriter(io.Discard) },
	)
}

// boundedGzip is a gzip.Reader that gives one byte more than a message may have.
type boundedGzip struct {
	gzip.Reader
	left int64
}

var errUnpacked = errors.New("it is not unpacked to its end")

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

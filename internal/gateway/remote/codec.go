package remote

import (
	"bytes"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
)

// codec encodes messages as Protobuf. The bytes of a response's parts are decoded into a buffer that is reused for the
// next part. Otherwise bulk data in calls would allocate as many bytes as it has.
type codec struct{}

func (codec) Name() string { return "proto" }

func (c codec) Marshal(m any) ([]byte, error) { return c.MarshalAppend(nil, m) }

// MarshalAppend lets Connect reuse its buffers.
func (codec) MarshalAppend(b []byte, m any) ([]byte, error) {
	if f, ok := m.(*frame); ok {
		return append(b, f.data...), nil
	}
	return proto.MarshalOptions{}.MarshalAppend(b, m.(proto.Message))
}

func (codec) Unmarshal(b []byte, m any) error {
	switch m := m.(type) {
	case *part:
		return m.unmarshal(b)
	case *frame:
		m.data = bytes.Clone(b)
		return nil
	case proto.Message:
		return proto.Unmarshal(b, m)
	}
	return fmt.Errorf("cannot unmarshal %T", m)
}

// part is one part of a response.
type part struct {
	data  []byte                      // bytes of the response; valid until the next part is received
	other *internalv1.SessionResponse // any other part
	buf   []byte
}

// fieldData is the number of the field of the bytes in a SessionResponse.
const fieldData = 2

func (p *part) unmarshal(b []byte) error {
	p.data, p.other = nil, nil
	if data, ok := onlyField(b, fieldData); ok {
		p.buf = append(p.buf[:0], data...)
		p.data = p.buf
		return nil
	}
	p.other = &internalv1.SessionResponse{}
	if err := proto.Unmarshal(b, p.other); err != nil {
		return err
	}
	p.data = p.other.GetData()
	return nil
}

// onlyField returns the bytes of a field if the message has no other field.
func onlyField(b []byte, field protowire.Number) ([]byte, bool) {
	number, kind, n := protowire.ConsumeTag(b)
	if n < 0 || number != field || kind != protowire.BytesType {
		return nil, false
	}
	value, m := protowire.ConsumeBytes(b[n:])
	return value, m >= 0 && n+m == len(b)
}

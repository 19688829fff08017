package remote

import (
	"fmt"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// codec is Protobuf's, but for the parts of an answer: their bytes go into a buffer that is used again for the next
// part. Bulk bytes inside the calls cost one allocation for each byte otherwise.
type codec struct{}

func (codec) Name() string { return "proto" }

func (codec) Marshal(m any) ([]byte, error) { return proto.Marshal(m.(proto.Message)) }

// MarshalAppend lets Connect use its own buffers again.
func (codec) MarshalAppend(b []byte, m any) ([]byte, error) {
	return proto.MarshalOptions{}.MarshalAppend(b, m.(proto.Message))
}

func (codec) Unmarshal(b []byte, m any) error {
	switch m := m.(type) {
	case *part:
		return m.unmarshal(b)
	case proto.Message:
		return proto.Unmarshal(b, m)
	}
	return fmt.Errorf("cannot unmarshal %T", m)
}

// part is one part of an answer. It takes the place of AdvertiseResponse and UploadPackResponse, which look the same on
// the wire.
type part struct {
	data  []byte                   // bytes of the answer; good until the next part is received
	other *internalv1.ResponsePart // any other part
	buf   []byte
}

// The numbers of transfer.proto's fields.
const (
	fieldAnswer = 1 // of the responses
	fieldData   = 2 // of Answer
)

func (p *part) unmarshal(b []byte) error {
	p.data, p.other = nil, nil
	if answer, ok := only(b, fieldAnswer); ok {
		if data, ok := only(answer, fieldData); ok {
			p.buf = append(p.buf[:0], data...)
			p.data = p.buf
			return nil
		}
	}
	var m internalv1.UploadPackResponse
	if err := proto.Unmarshal(b, &m); err != nil {
		return err
	}
	p.other = m.GetPart()
	if data, ok := p.other.GetPart().(*internalv1.ResponsePart_Data); ok {
		p.data = data.Data
	}
	return nil
}

// only gives the bytes of a message's field if that is all that the message holds.
func only(b []byte, field protowire.Number) ([]byte, bool) {
	number, kind, n := protowire.ConsumeTag(b)
	if n < 0 || number != field || kind != protowire.BytesType {
		return nil, false
	}
	value, m := protowire.ConsumeBytes(b[n:])
	return value, m >= 0 && n+m == len(b)
}

package control

import (
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// jsonCodec reads and writes messages as JSON. Unlike Connect's own codec it refuses unknown fields, and names them. A
// mistyped field that restricts a call, such as Delete's incarnation, must not be ignored.
type jsonCodec struct{ name string }

// jsonNames are the names of JSON in content types.
var jsonNames = []string{"json", "json; charset=utf-8"}

func (c jsonCodec) Name() string { return c.name }

func (jsonCodec) Marshal(m any) ([]byte, error) { return protojson.Marshal(m.(proto.Message)) }

// MarshalAppend lets Connect reuse its buffers.
func (jsonCodec) MarshalAppend(b []byte, m any) ([]byte, error) {
	return protojson.MarshalOptions{}.MarshalAppend(b, m.(proto.Message))
}

func (jsonCodec) Unmarshal(b []byte, m any) error {
	message := m.(proto.Message)
	if len(b) == 0 {
		return errors.New(`empty message: want at least "{}"`)
	}
	if n := jsonParts(b); n > maxJSONParts {
		return fmt.Errorf("message with %d objects, lists and values: the maximum is %d", n, maxJSONParts)
	}
	if err := protojson.Unmarshal(b, message); err != nil {
		text := strings.TrimLeft(strings.TrimPrefix(err.Error(), "proto:"), " \u00a0") // protobuf-go varies the space
		return fmt.Errorf("not a %s in JSON: %s", message.ProtoReflect().Descriptor().Name(), clip(text))
	}
	return nil
}

// maxJSONParts is the maximum number of objects, lists and values in a message.
const maxJSONParts = 8 * maxFields

// jsonParts counts the objects, lists and commas in a message.
func jsonParts(b []byte) (n int) {
	quoted := false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case !quoted && (c == '{' || c == '[' || c == ','):
			n++
		}
	}
	return n
}

package control

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// jsonCodec reads and writes messages as JSON. Unlike Connect's own it refuses fields that a message does not have: whoever writes a call by
// hand and mistypes the field that narrows it, as Delete's incarnation, must not be taken for one who leaves it out. Its errors name fields.
type jsonCodec struct{ name string }

// What content types call JSON.
var jsonNames = []string{"json", "json; charset=utf-8"}

func (c jsonCodec) Name() string { return c.name }

func (jsonCodec) IsBinary() bool { return false }

func (jsonCodec) Marshal(m any) ([]byte, error) { return protojson.Marshal(m.(proto.Message)) }

// MarshalAppend lets Connect use its own buffers again.
func (jsonCodec) MarshalAppend(b []byte, m any) ([]byte, error) {
	return protojson.MarshalOptions{}.MarshalAppend(b, m.(proto.Message))
}

// MarshalStable gives the same bytes for the same message; protojson varies its spaces.
func (jsonCodec) MarshalStable(m any) ([]byte, error) {
	text, err := protojson.Marshal(m.(proto.Message))
	if err != nil {
		return nil, err
	}
	var compact bytes.Buffer
	err = json.Compact(&compact, text)
	return compact.Bytes(), err
}

func (jsonCodec) Unmarshal(b []byte, m any) error {
	message := m.(proto.Message)
	if len(b) == 0 {
		return errors.New(`nothing is there; the least is "{}"`)
	}
	if n := jsonParts(b); n > maxJSONParts {
		return fmt.Errorf("the message has %d objects, lists and values, more than the %d of any call", n, maxJSONParts)
	}
	if err := protojson.Unmarshal(b, message); err != nil {
		text := strings.TrimLeft(strings.TrimPrefix(err.Error(), "proto:"), " \u00a0") // which of the two varies
		return fmt.Errorf("not a %s in JSON: %s", message.ProtoReflect().Descriptor().Name(), clip(text))
	}
	return nil
}

// maxJSONParts is how many objects, lists and values a message may have: some for each of what maxFields counts.
const maxJSONParts = 8 * maxFields

// jsonParts counts the objects, the lists and what commas part.
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

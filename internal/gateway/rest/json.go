package rest

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/fault/faultrpc"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// Object is a JSON object. Its values are texts, numbers, booleans, objects, messages, and lists of those.
type Object map[string]any

const (
	base64Suffix = "_base64"
	// maxValues is the maximum number of values and brackets in a document.
	maxValues = 1 << 18
)

// NewObject returns a message as JSON. Empty fields are left out, except for lists of m itself if withLists is set.
func NewObject(m proto.Message, withLists bool) Object {
	o := Object{}
	eachField(m.ProtoReflect(), withLists, func(name string, value any) { o[name] = value })
	return o
}

func eachField(m protoreflect.Message, withLists bool, fn func(name string, value any)) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.IsList() && (withLists || m.Has(f)):
			list := m.Get(f).List()
			values := make([]any, list.Len())
			for i := range values {
				_, values[i] = newValue(f, list.Get(i))
			}
			fn(outName(f), values)
		case m.Has(f):
			suffix, value := newValue(f, m.Get(f))
			fn(outName(f)+suffix, value)
		}
	}
}

// outName returns the name of a field in JSON.
func outName(f protoreflect.FieldDescriptor) string {
	if f.Name() == "next_page_token" {
		return "next"
	}
	return string(f.Name())
}

// isMode reports whether a field is the mode of a file, which is octal in JSON.
func isMode(f protoreflect.FieldDescriptor) bool {
	return f.Kind() == protoreflect.Uint32Kind && strings.HasSuffix(string(f.Name()), "mode")
}

// newValue returns a value, and what to add to the name of its field.
func newValue(f protoreflect.FieldDescriptor, v protoreflect.Value) (suffix string, value any) {
	switch x := v.Interface().(type) {
	case protoreflect.Map: // of texts
		o := Object{}
		x.Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
			o[key.String()] = value.Interface()
			return true
		})
		return "", o
	case protoreflect.Message:
		switch m := x.Interface().(type) {
		case *packhorsev1.Fault:
			return "", NewError(faultrpc.Fault(m))
		case *durationpb.Duration:
			return "", m.AsDuration().String()
		case *timestamppb.Timestamp:
			return "", m.AsTime().Format(time.RFC3339Nano)
		}
	case []byte:
		if utf8.Valid(x) {
			return "", string(x)
		}
		return base64Suffix, base64.StdEncoding.EncodeToString(x)
	case uint32:
		if isMode(f) {
			return "", fmt.Sprintf("%06o", x)
		}
	case uint64: // of versions. Not all programs read large numbers exactly.
		return "", strconv.FormatUint(x, 10)
	}
	return "", v.Interface()
}

// NewError returns an error as JSON.
func NewError(err error) Object {
	o := NewObject(faultrpc.Message(err), false)
	delete(o, "caller_limit")
	o["kind"] = fault.KindOf(err).String()
	if after := fault.RetryAfter(err); after > 0 {
		o["retry_after"] = math.Ceil(after.Seconds())
	}
	return o
}

// Encode returns a document as a line.
func Encode(o Object) []byte { return Append(nil, o) }

// Append is Encode, but appends to b.
func Append(b []byte, o Object) []byte { return append(appendValue(b, o), '\n') }

// MarshalJSON implements json.Marshaler.
func (o Object) MarshalJSON() ([]byte, error) { return appendValue(nil, o), nil }

func appendValue(b []byte, value any) []byte {
	var end byte
	begun := len(b)
	next := func() { b = append(b, ',') } // the first one becomes a bracket
	field := func(name string, value any) {
		next()
		b = appendValue(append(appendText(b, name), ':'), value)
	}
	switch v := value.(type) {
	case string:
		return appendText(b, v)
	case []any:
		end = ']'
		for _, part := range v {
			next()
			b = appendValue(b, part)
		}
	case protoreflect.Message:
		end = '}'
		eachField(v, false, field)
	case Object:
		end = '}'
		for _, name := range slices.Sorted(maps.Keys(v)) {
			field(name, v[name])
		}
	default:
		text, _ := json.Marshal(v) // a number, or whatever OpenAPI has
		return append(b, text...)
	}
	if len(b) == begun {
		next()
	}
	b[begun] = end - 2 // '[' and '{'
	return append(b, end)
}

// appendText appends a text in UTF-8 as a string.
func appendText(b []byte, s string) []byte {
	b = append(b, '"')
	from := 0
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(append(b, s[from:i]...), '\\')
			from = i
		case c == '\n':
			b = append(append(b, s[from:i]...), `\n`...)
			from = i + 1
		case c < ' ':
			b = fmt.Appendf(append(b, s[from:i]...), `\u%04x`, c)
			from = i + 1
		}
	}
	return append(append(b, s[from:]...), '"')
}

// invalid returns the error of a field, or of the whole request if field is empty.
func invalid(field, format string, args ...any) error {
	err := fault.New(fault.Invalid, format, args...)
	if field == "" {
		return err
	}
	return fault.InField(field, err)
}

// decode reads a document into a message.
func decode(text []byte, m protoreflect.Message) error {
	if err := json.Unmarshal(text, new(json.RawMessage)); err != nil {
		return invalid("", "the body is not a JSON document: %v", err)
	}
	if !utf8.Valid(text) {
		return invalid("", "the body is not UTF-8: send such bytes in a field whose name ends in %s", base64Suffix)
	}
	for d, n := json.NewDecoder(bytes.NewReader(text)), 0; ; n++ {
		if _, err := d.Token(); err != nil { // the end
			break
		}
		if n == maxValues {
			return invalid("", "the body has more than %d values and brackets", maxValues)
		}
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var document any
	if err := d.Decode(&document); err != nil {
		return err
	}
	return setFields(m, "", document)
}

// setFields sets the fields of a message to those of an object. at is the name of the message in errors.
func setFields(m protoreflect.Message, at string, value any) error {
	object, ok := value.(map[string]any)
	if !ok {
		return invalid(strings.TrimSuffix(at, "."), "want a JSON object")
	}
	for _, name := range slices.Sorted(maps.Keys(object)) {
		if err := setField(m, name, at+name, object[name]); err != nil {
			return err
		}
	}
	return nil
}

// setField sets a field. name is its name in JSON.
func setField(m protoreflect.Message, name, at string, value any) error {
	f, isBase64 := findField(m.Descriptor(), name)
	if f == nil {
		return invalid(at, "there is no such field: want one of %s", fieldNames(m.Descriptor()))
	}
	group := f.ContainingOneof()
	switch {
	case value == nil:
		return nil
	case group != nil && m.WhichOneof(group) != nil && m.WhichOneof(group) != f:
		return invalid(at, "it cannot be set together with %s", m.WhichOneof(group).Name())
	case m.Has(f):
		return invalid(at, "it is set twice")
	case value == "" && strings.HasPrefix(name, "expected"): // perhaps a variable of a script that is not set
		return invalid(at, "it is empty: leave it out to accept any value")
	case value == "" && name == "new_oid":
		return invalid(at, "it is empty: leave it out to delete the ref")
	case f.IsMap():
		return setMap(m.Mutable(f).Map(), at, value)
	case !f.IsList():
		v, err := parseValue(f, m.NewField(f), isBase64, at, value)
		if err == nil {
			m.Set(f, v)
		}
		return err
	}
	values, ok := value.([]any)
	if !ok {
		return invalid(at, "want a list")
	}
	list := m.Mutable(f).List()
	for i, value := range values {
		v, err := parseValue(f, list.NewElement(), isBase64, fmt.Sprintf("%s[%d]", at, i), value)
		if err != nil {
			return err
		}
		list.Append(v)
	}
	return nil
}

// setMap sets a map of texts to an object.
func setMap(m protoreflect.Map, at string, value any) error {
	object, ok := value.(map[string]any)
	for key, value := range object {
		text, isText := value.(string)
		ok = ok && isText
		m.Set(protoreflect.ValueOfString(key).MapKey(), protoreflect.ValueOfString(text))
	}
	if !ok {
		return invalid(at, "want a JSON object with texts")
	}
	return nil
}

// fieldNames returns the names of the fields that a request can set.
func fieldNames(d protoreflect.MessageDescriptor) string {
	var names []string
	for i := range d.Fields().Len() {
		name := string(d.Fields().Get(i).Name())
		if name != "repository" && name != "actor" {
			names = append(names, cmp.Or(renamed[name], name))
		}
	}
	return strings.Join(names, ", ")
}

// findField finds a field by its name in JSON. It returns nil if there is none.
func findField(d protoreflect.MessageDescriptor, name string) (f protoreflect.FieldDescriptor, isBase64 bool) {
	if f = d.Fields().ByName(protoreflect.Name(name)); f != nil {
		return f, false
	}
	if short, ok := strings.CutSuffix(name, base64Suffix); ok {
		if f = d.Fields().ByName(protoreflect.Name(short)); f != nil && f.Kind() == protoreflect.BytesKind {
			return f, true
		}
	}
	return nil, false
}

// parseValue returns a value of a field. empty is a new one. Numbers and booleans may be texts, as in a URL.
func parseValue(f protoreflect.FieldDescriptor, empty protoreflect.Value, isBase64 bool, at string, value any) (
	protoreflect.Value, error) {
	text, isText := value.(string)
	switch kind := f.Kind(); {
	case isDuration(f):
		if d, err := time.ParseDuration(text); err == nil {
			return protoreflect.ValueOfMessage(durationpb.New(d).ProtoReflect()), nil
		}
		return empty, invalid(at, `want a duration such as "90m" or "336h"`)
	case kind == protoreflect.MessageKind:
		return empty, setFields(empty.Message(), at+".", value)
	case kind == protoreflect.StringKind && isText && utf8.ValidString(text): // a URL may have other bytes
		return protoreflect.ValueOfString(text), nil
	case kind == protoreflect.BytesKind && isText && !isBase64:
		return protoreflect.ValueOfBytes([]byte(text)), nil
	case kind == protoreflect.BytesKind && isText:
		if data, err := base64.StdEncoding.DecodeString(text); err == nil {
			return protoreflect.ValueOfBytes(data), nil
		}
	case kind == protoreflect.BoolKind:
		if is, err := strconv.ParseBool(fmt.Sprint(value)); err == nil {
			return protoreflect.ValueOfBool(is), nil
		}
	case kind == protoreflect.Int32Kind:
		if n, err := strconv.ParseInt(fmt.Sprint(value), 10, 32); err == nil {
			return protoreflect.ValueOfInt32(int32(n)), nil
		}
	case kind == protoreflect.Uint64Kind:
		if n, err := strconv.ParseUint(fmt.Sprint(value), 10, 64); err == nil {
			return protoreflect.ValueOfUint64(n), nil
		}
	case kind == protoreflect.Int64Kind:
		if n, err := strconv.ParseInt(fmt.Sprint(value), 10, 64); err == nil {
			return protoreflect.ValueOfInt64(n), nil
		}
	}
	return empty, invalid(at, "want a value of type %s", typeName(f))
}

// isDuration reports whether a field is a duration, which is a text in JSON.
func isDuration(f protoreflect.FieldDescriptor) bool {
	return f.Message() != nil && f.Message().FullName() == "google.protobuf.Duration"
}

// typeName returns the type of a field in JSON.
func typeName(f protoreflect.FieldDescriptor) string {
	switch f.Kind() {
	case protoreflect.BoolKind:
		return "boolean"
	case protoreflect.MessageKind:
		return "object"
	case protoreflect.Int32Kind, protoreflect.Int64Kind:
		return "integer"
	}
	return "string"
}

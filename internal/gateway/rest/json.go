package rest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/fault/faultrpc"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// Object is a JSON object.
type Object map[string]any

const (
	base64Suffix = "_base64"
	// maxExact is the largest integer that all programs read exactly from JSON. Larger ones are strings.
	maxExact = 1 << 53
	// maxValues is the maximum number of values in a document.
	maxValues = 1 << 18
)

// NewObject returns a message as JSON. Empty fields are left out, except for lists of m itself if withLists is set.
func NewObject(m proto.Message, withLists bool) Object { return newObject(m.ProtoReflect(), withLists) }

func newObject(m protoreflect.Message, withLists bool) Object {
	o := Object{}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		value := m.Get(f)
		switch {
		case f.IsList() && (withLists || value.List().Len() > 0):
			list := make([]any, value.List().Len())
			for i := range list {
				_, list[i] = newValue(f, value.List().Get(i))
			}
			o[outName(f)] = list
		case m.Has(f):
			suffix, v := newValue(f, value)
			o[outName(f)+suffix] = v
		}
	}
	return o
}

// outName returns the name of a field in JSON.
func outName(f protoreflect.FieldDescriptor) string {
	if f.Name() == "next_page_token" {
		return "next"
	}
	return string(f.Name())
}

// newValue returns a value, and what to add to the name of its field.
func newValue(f protoreflect.FieldDescriptor, v protoreflect.Value) (suffix string, value any) {
	switch x := v.Interface().(type) {
	case protoreflect.Message:
		if problem, ok := x.Interface().(*packhorsev1.Fault); ok {
			return "", NewError(faultrpc.Fault(problem))
		}
		return "", newObject(x, false)
	case []byte:
		if utf8.Valid(x) {
			return "", string(x)
		}
		return base64Suffix, base64.StdEncoding.EncodeToString(x)
	case uint32:
		if strings.HasSuffix(string(f.Name()), "mode") {
			return "", fmt.Sprintf("%06o", x)
		}
	case int64:
		if x > maxExact || x < -maxExact {
			return "", strconv.FormatInt(x, 10)
		}
	case uint64: // of versions, which are large
		return "", strconv.FormatUint(x, 10)
	}
	return "", v.Interface()
}

// NewError returns an error as JSON.
func NewError(err error) Object {
	o := Object{"kind": fault.KindOf(err).String(), "message": strings.ToValidUTF8(fault.Message(err), "\ufffd")}
	if after := fault.RetryAfter(err); after > 0 {
		o["retry_after"] = math.Ceil(after.Seconds())
	}
	if e, ok := errors.AsType[*fault.Error](err); ok {
		if e.Field != "" {
			o["field"] = e.Field
		}
		var list []Object
		for _, m := range e.Mismatches {
			list = append(list, Object{"name": m.Name, "expected": m.Expected, "actual": m.Actual})
		}
		if list != nil {
			o["mismatches"] = list
		}
	}
	return o
}

// Encode returns a document without a line end.
func Encode(o Object) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(o) // of texts, numbers, lists and objects
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// decode reads one document into a message.
func decode(text []byte, m proto.Message) error {
	if !utf8.Valid(text) {
		return fault.New(fault.Invalid, "the body is not UTF-8: send such bytes in a field whose name ends in %s",
			base64Suffix)
	}
	d := &decoder{Decoder: json.NewDecoder(bytes.NewReader(text))}
	d.UseNumber()
	token, err := d.token()
	if err == nil {
		err = d.message(m.ProtoReflect(), "", token)
	}
	if err == nil {
		if _, end := d.Token(); end != io.EOF {
			err = fault.New(fault.Invalid, "the body has data after its JSON document")
		}
	}
	return err
}

// decoder reads JSON into messages.
type decoder struct {
	*json.Decoder
	values int // that were read
}

func (d *decoder) token() (json.Token, error) {
	if d.values++; d.values > maxValues {
		return nil, fault.New(fault.Invalid, "the body has more than %d values", maxValues)
	}
	token, err := d.Token()
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return token, fault.Wrap(fault.Invalid, fmt.Sprintf("the body is not a JSON document: %v", err), err)
}

// message reads an object of which the first token was read.
func (d *decoder) message(m protoreflect.Message, at string, first json.Token) error {
	if first != json.Delim('{') {
		return fault.InField(at, fault.New(fault.Invalid, "want a JSON object"))
	}
	for d.More() {
		key, err := d.token()
		if err != nil {
			return err
		}
		name := key.(string) // that of an object
		f, isBase64 := inField(m, name)
		field := at + name
		if f == nil {
			return unknownField(field)
		}
		value, err := d.token()
		if err == nil && value != nil {
			err = d.field(m, f, isBase64, field, value)
		}
		if err != nil {
			return err
		}
	}
	_, err := d.token()
	return err
}

// field reads the value of a field, of which the first token was read.
func (d *decoder) field(m protoreflect.Message, f protoreflect.FieldDescriptor, isBase64 bool, at string,
	first json.Token) error {
	if err := checkOnce(m, f, at); err != nil {
		return err
	}
	if !f.IsList() {
		return d.value(f, isBase64, at, first, m.NewField, func(v protoreflect.Value) { m.Set(f, v) })
	}
	if first != json.Delim('[') {
		return fault.InField(at, fault.New(fault.Invalid, "want a list"))
	}
	list := m.Mutable(f).List()
	for d.More() {
		token, err := d.token()
		if err == nil {
			err = d.value(f, isBase64, fmt.Sprintf("%s[%d]", at, list.Len()), token,
				func(protoreflect.FieldDescriptor) protoreflect.Value { return list.NewElement() }, list.Append)
		}
		if err != nil {
			return err
		}
	}
	_, err := d.token()
	return err
}

// value reads one value and passes it to set. empty returns a new one.
func (d *decoder) value(f protoreflect.FieldDescriptor, isBase64 bool, at string, first json.Token,
	empty func(protoreflect.FieldDescriptor) protoreflect.Value, set func(protoreflect.Value)) error {
	if f.Kind() == protoreflect.MessageKind {
		v := empty(f)
		err := d.message(v.Message(), at+".", first)
		if err == nil {
			set(v)
		}
		return err
	}
	text, ok := "", true
	switch x := first.(type) {
	case string:
		text, ok = x, f.Kind() != protoreflect.BoolKind
	case json.Number:
		text, ok = x.String(), f.Kind() != protoreflect.StringKind && f.Kind() != protoreflect.BytesKind
	case bool:
		text, ok = strconv.FormatBool(x), f.Kind() == protoreflect.BoolKind
	default:
		ok = false
	}
	v, err := parseValue(f, text, isBase64)
	if err != nil || !ok {
		return fault.InField(at, fault.New(fault.Invalid, "want a value of type %s", typeName(f)))
	}
	set(v)
	return nil
}

// inField finds a field by its name in JSON. It returns nil if there is none.
func inField(m protoreflect.Message, name string) (f protoreflect.FieldDescriptor, isBase64 bool) {
	fields := m.Descriptor().Fields()
	if f = fields.ByName(protoreflect.Name(name)); f != nil {
		return f, false
	}
	if short, ok := strings.CutSuffix(name, base64Suffix); ok {
		if f = fields.ByName(protoreflect.Name(short)); f != nil && f.Kind() == protoreflect.BytesKind {
			return f, true
		}
	}
	return nil, false
}

func unknownField(name string) error {
	return fault.InField(name, fault.New(fault.Invalid, "there is no such field"))
}

// checkOnce fails if a field, or an alternative to it, was set.
func checkOnce(m protoreflect.Message, f protoreflect.FieldDescriptor, at string) error {
	if group := f.ContainingOneof(); group != nil && m.WhichOneof(group) != nil && m.WhichOneof(group) != f {
		return fault.InField(at, fault.New(fault.Invalid, "it cannot be set together with %s", m.WhichOneof(group).Name()))
	}
	if m.Has(f) {
		return fault.InField(at, fault.New(fault.Invalid, "it is set twice"))
	}
	return nil
}

// typeName returns the type of a field in JSON.
func typeName(f protoreflect.FieldDescriptor) string {
	switch f.Kind() {
	case protoreflect.BoolKind:
		return "boolean"
	case protoreflect.StringKind, protoreflect.BytesKind, protoreflect.EnumKind:
		return "string"
	case protoreflect.MessageKind:
		return "object"
	}
	return "integer"
}

// parseValue parses a value that is not a message.
func parseValue(f protoreflect.FieldDescriptor, text string, isBase64 bool) (v protoreflect.Value, err error) {
	const decimal = 10
	switch f.Kind() {
	case protoreflect.StringKind:
		v = protoreflect.ValueOfString(text)
		if !utf8.ValidString(text) {
			err = errors.New("not UTF-8")
		}
	case protoreflect.BytesKind:
		data := []byte(text)
		if isBase64 {
			data, err = base64.StdEncoding.DecodeString(text)
		}
		v = protoreflect.ValueOfBytes(data)
	case protoreflect.BoolKind:
		var is bool
		is, err = strconv.ParseBool(text)
		v = protoreflect.ValueOfBool(is)
	case protoreflect.Int32Kind:
		var n int64
		n, err = strconv.ParseInt(text, decimal, 32)
		v = protoreflect.ValueOfInt32(int32(n))
	case protoreflect.Int64Kind:
		var n int64
		n, err = strconv.ParseInt(text, decimal, 64)
		v = protoreflect.ValueOfInt64(n)
	default:
		err = errors.New("no field of a request has this type")
	}
	return v, err
}

package wire

import (
	"encoding/json"
	"errors"
	"io"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/lfs"
)

// Limits of the size of the documents of requests in bytes. Clients need about 110 bytes for an object of a batch.
const (
	MaxBatch    = 4 << 20
	MaxDocument = 64 << 10 // of any other request
)

// ErrTooLarge is the error of a request that exceeds a limit.
var ErrTooLarge = fault.New(fault.Invalid, "the request is too large: use at most %d objects in a batch, and %d bytes",
	lfs.MaxBatch, MaxBatch)

// ReadBatch reads a batch request. The objects are in the second result, and BatchRequest.Objects is empty. It stops at
// the limits lfs.MaxBatch and MaxBatch with ErrTooLarge, so that it needs little memory for a request of any size.
// Other errors are of kind Invalid, or those of the reader.
func ReadBatch(r io.Reader) (b BatchRequest, objects []lfs.Object, err error) {
	d := newDecoder(r, MaxBatch)
	err = d.object(func(key string) error {
		switch key {
		case "operation":
			return d.Decode(&b.Operation)
		case "transfers":
			return d.Decode(&b.Transfers)
		case "hash_algo":
			return d.Decode(&b.HashAlgo)
		case "ref":
			return d.Decode(&b.Ref)
		case "objects":
			objects = nil
			return d.array(func() error {
				if len(objects) == lfs.MaxBatch {
					return ErrTooLarge
				}
				var o Object
				if err := d.Decode(&o); err != nil {
					return err
				}
				parsed, err := o.Parse()
				objects = append(objects, parsed)
				return err
			})
		}
		var ignored json.RawMessage
		return d.Decode(&ignored)
	})
	return b, objects, d.explain(err)
}

// Parse checks the names of the object. The error is of kind Invalid.
func (o Object) Parse() (lfs.Object, error) {
	id, err := lfs.ParseOID(o.OID)
	if err == nil && o.Size < 0 {
		err = fault.New(fault.Invalid, "LFS object %s has the size %d, which is negative", id, o.Size)
	}
	return lfs.Object{OID: id, Size: o.Size}, err
}

// Read reads the document of any other request into v, up to MaxDocument. Its errors are those of ReadBatch.
func Read(r io.Reader, v any) error {
	d := newDecoder(r, MaxDocument)
	err := d.Decode(v)
	if err == nil {
		err = d.end()
	}
	return d.explain(err)
}

// decoder reads one document up to a limit.
type decoder struct {
	*json.Decoder
	in *io.LimitedReader
}

func newDecoder(r io.Reader, limit int64) *decoder {
	in := &io.LimitedReader{R: r, N: limit + 1}
	return &decoder{json.NewDecoder(in), in}
}

// explain returns the error of a document for the client.
func (d *decoder) explain(err error) error {
	switch {
	case err == nil:
		return nil
	case d.in.N <= 0:
		return ErrTooLarge
	}
	if _, ok := errors.AsType[*fault.Error](err); ok {
		return err
	}
	return fault.Wrap(fault.Invalid, "the request is not a document of Git LFS's API: "+err.Error(), err)
}

// object reads a document that is an object. It calls read after each key, to read the value.
func (d *decoder) object(read func(key string) error) error {
	if err := d.delimiter('{'); err != nil {
		return err
	}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return err
		}
		key, _ := token.(string)
		if err := read(key); err != nil {
			return err
		}
	}
	if err := d.delimiter('}'); err != nil {
		return err
	}
	return d.end()
}

// array calls read before each element of an array, to read it. null is an empty array.
func (d *decoder) array(read func() error) error {
	token, err := d.Token()
	if err != nil || token == nil {
		return err
	}
	if token != json.Delim('[') {
		return errors.New("objects is not an array")
	}
	for d.More() {
		if err := read(); err != nil {
			return err
		}
	}
	return d.delimiter(']')
}

// delimiter reads a bracket or a brace.
func (d *decoder) delimiter(want json.Delim) error {
	token, err := d.Token()
	if err == nil && token != want {
		err = errors.New("expected " + want.String())
	}
	return err
}

// end checks that nothing follows the document.
func (d *decoder) end() error {
	switch _, err := d.Token(); {
	case err == nil:
		return errors.New("data after the document")
	case err != io.EOF:
		return err
	}
	return nil
}

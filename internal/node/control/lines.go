package control

import (
	"bytes"
	"fmt"
	"io"
	"net/http"

	"connectrpc.com/connect"
)

// serveLines answers a call of a stream whose request is one message in JSON. Each message of the response is a line.
// An error after the first message is a last line, {"error": ...}, and then the connection is cut.
func (s *Server) serveLines(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxMessage))
	if err != nil {
		_ = s.errors.Write(w, r, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("cannot read the body: %w", err)))
		return
	}
	request := connect.NewRequest(&body)
	for name, values := range r.Header {
		request.Header()[name] = values
	}
	begun := false
	send := func(line []byte) error {
		if !begun {
			begun = true
			w.Header().Set("Content-Type", "application/jsonl")
		}
		if _, err := w.Write(line); err != nil {
			return err
		}
		return http.NewResponseController(w).Flush()
	}
	client := connect.NewClient[[]byte, []byte](Local{s}, "http://localhost"+r.URL.Path, connect.WithCodec(jsonText{}))
	stream, err := client.CallServerStream(r.Context(), request)
	if err == nil {
		defer stream.Close()
		for err == nil && stream.Receive() {
			err = send(append(*stream.Msg(), '\n'))
		}
		if err == nil {
			err = stream.Err()
		}
	}
	switch {
	case err == nil && !begun:
		_ = send(nil)
	case err != nil && !begun:
		_ = s.errors.Write(w, r, err)
	case err != nil:
		_ = send([]byte(`{"error":`))
		_ = s.errors.Write(bodyWriter{w}, r, err)
		_ = send([]byte("}\n"))
		panic(http.ErrAbortHandler)
	}
}

// jsonText passes messages in JSON on as they are.
type jsonText struct{}

func (jsonText) Name() string { return jsonNames[0] }

func (jsonText) Marshal(m any) ([]byte, error) { return *m.(*[]byte), nil }

func (jsonText) Unmarshal(b []byte, m any) error {
	*m.(*[]byte) = bytes.Clone(b)
	return nil
}

// bodyWriter writes to the body of a response whose header was sent.
type bodyWriter struct{ http.ResponseWriter }

func (bodyWriter) WriteHeader(int) {}

package control

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"connectrpc.com/connect"
)

// The protocol of Connect for streams puts a prefix before each message: flags, and the length in 4 bytes.
const (
	linePrefix = 5
	lastLine   = 0x02 // flag of the last message, which has the error
)

// serveLines answers a call of a stream whose request is one message in JSON. Each message of the response is a line.
// An error after the first message is a last line, {"error": ...}, and then the connection is cut.
func (s *Server) serveLines(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxMessage))
	if err != nil {
		_ = s.errors.Write(w, r, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("cannot read the body: %w", err)))
		return
	}
	call := r.Clone(r.Context())
	call.ProtoMajor = 2 // the whole request is here, so that streams in both directions work, too
	call.Header.Set("Content-Type", "application/connect+json")
	call.Header.Del("Content-Length")
	prefix := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body)))
	call.Body, call.ContentLength = io.NopCloser(bytes.NewReader(append(prefix, body...))), -1
	lines := &lineWriter{ResponseWriter: w}
	s.mux.ServeHTTP(lines, call)
	lines.end(s.errors, r)
}

// lineWriter makes lines of the messages of a stream.
type lineWriter struct {
	http.ResponseWriter
	begun   bool   // a line was written
	pending []byte // part of a message
	last    []byte // the last message
}

func (w *lineWriter) begin() {
	if !w.begun {
		w.begun = true
		w.Header().Set("Content-Type", "application/jsonl")
		w.ResponseWriter.WriteHeader(http.StatusOK)
	}
}

// WriteHeader waits for the first message, before which an error has a status of its own.
func (w *lineWriter) WriteHeader(int) {}

func (w *lineWriter) Write(p []byte) (int, error) {
	w.pending = append(w.pending, p...)
	for len(w.pending) >= linePrefix {
		end := linePrefix + int(binary.BigEndian.Uint32(w.pending[1:]))
		if len(w.pending) < end {
			break
		}
		flags, message := w.pending[0], w.pending[linePrefix:end:end]
		w.pending = w.pending[end:]
		if flags&lastLine != 0 {
			w.last = message
			continue
		}
		w.begin()
		if _, err := w.ResponseWriter.Write(append(message, '\n')); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// Flush implements http.Flusher.
func (w *lineWriter) Flush() {
	if w.begun {
		_ = http.NewResponseController(w.ResponseWriter).Flush()
	}
}

// end ends the response. Without a line, an error is sent as that of a unary call.
func (w *lineWriter) end(errorWriter *connect.ErrorWriter, r *http.Request) {
	var last struct {
		Error *struct {
			Code    connect.Code    `json:"code"`
			Message string          `json:"message"`
			Details json.RawMessage `json:"details,omitempty"`
		} `json:"error"`
	}
	if err := json.Unmarshal(w.last, &last); err != nil || last.Error == nil {
		w.begin()
		return
	}
	if w.begun {
		_, _ = w.ResponseWriter.Write(append(w.last, '\n'))
		w.Flush()
		panic(http.ErrAbortHandler)
	}
	status := &statusWriter{ResponseWriter: w.ResponseWriter}
	_ = errorWriter.Write(status, r, connect.NewError(last.Error.Code, errors.New(last.Error.Message)))
	text, _ := json.Marshal(last.Error) // of JSON
	_, _ = w.ResponseWriter.Write(append(text, '\n'))
}

// statusWriter sends the header of a response, and drops its body.
type statusWriter struct{ http.ResponseWriter }

func (w *statusWriter) Write(p []byte) (int, error) { return len(p), nil }

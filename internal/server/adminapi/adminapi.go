// Package adminapi is the protocol between an operator's commands and a running process over the admin socket: JSON
// over HTTP/1.1. Nodes and Workers document their paths; the third one is DumpPath. The socket has mode 0600, and every
// client that can connect may administer. An answer other than 200 is an Error.
//
// A process with repositories or an index serves the control API on the same socket (package control).
package adminapi

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"time"
)

// Error is the answer to a request that was refused or failed.
type Error struct {
	Error string `json:"error"` // the cause
}

// Reply answers with a status and JSON.
func Reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client has disconnected
}

// Refuse answers with a status and an Error.
func Refuse(w http.ResponseWriter, status int, why string) { Reply(w, status, Error{why}) }

// Timeout is the time limit of a request on the admin socket.
const Timeout = 10 * time.Second

// NewServer returns the HTTP server of an admin socket.
func NewServer(handler http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler: handler, ReadTimeout: Timeout, WriteTimeout: Timeout, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// DumpPath is the path of a request for a dump, on the admin socket and on the private listener. The answer is a
// watchdog.Dump.
const DumpPath = "/debug/dump"

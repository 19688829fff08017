// Package adminapi is what an operator's commands and a running process say to each other over the admin socket: JSON
// over HTTP/1.1, below the paths that Nodes and Workers tell, and DumpPath. Who may connect to the socket may
// administer: its mode is 0600. An answer that is not 200 is an Error.
//
// On the socket of a process that owns repositories or an index, the control API is served beside it (package control).
package adminapi

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"time"
)

// Error is the answer to a request that was refused or failed.
type Error struct {
	Error string `json:"error"` // what was wrong
}

// Reply answers with a status and JSON.
func Reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // who asked has gone away
}

// Refuse answers with a status and an Error.
func Refuse(w http.ResponseWriter, status int, why string) { Reply(w, status, Error{why}) }

// Timeout bounds a request on the admin socket.
const Timeout = 10 * time.Second

// NewServer is the HTTP server of an admin socket.
func NewServer(handler http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler: handler, ReadTimeout: Timeout, WriteTimeout: Timeout, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// DumpPath is where a dump is asked for, on the admin socket and on the private listener. The answer is a
// watchdog.Dump.
const DumpPath = "/debug/dump"

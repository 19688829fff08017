package adminapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/storage"
)

// LFSEvent is one line of the answer to a request about LFS objects. Lines with progress may be anywhere. The last line
// has the result or the error.
type LFSEvent struct {
	Progress *LFSProgress    `json:"progress,omitempty"`
	Item     json.RawMessage `json:"item,omitempty"`
	Result   json.RawMessage `json:"result,omitempty"` // "{}" after a list
	Error    string          `json:"error,omitempty"`  // the cause
}

// LFSProgress is the progress of a request.
type LFSProgress struct {
	Done  int64  `json:"done"`
	Total int64  `json:"total"` // 0: not known
	What  string `json:"what"`  // the present step
}

// lfsProgressInterval is the shortest time between two lines with progress.
const lfsProgressInterval = 100 * time.Millisecond

// LFS returns a handler for the LFS objects of a node. It passes other paths to h. n may be nil. A request ends with
// its connection. DIR is an absolute path.
//
//	GET  /lfs                           items: storage.LFSRepository
//	GET  /lfs/objects?path=PATH         items: storage.LFSObject
//	POST /lfs/gc[?path=PATH&dry_run=true&grace=336h]
//	                                    items: storage.LFSRemoved, result: storage.LFSGarbage
//	POST /lfs/verify[?path=PATH]        result: storage.LFSVerification
//	POST /lfs/import?path=PATH&dir=DIR  result: storage.LFSImported
func LFS(n *storage.Node, h http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", h)
	for pattern, work := range map[string]func(context.Context, *lfsRequest) (any, error){
		"GET /lfs": func(ctx context.Context, q *lfsRequest) (any, error) {
			return struct{}{}, n.LFSList(ctx, func(r storage.LFSRepository) error { return q.item(r) })
		},
		"GET /lfs/objects": func(ctx context.Context, q *lfsRequest) (any, error) {
			path, err := q.path()
			if err == nil {
				err = n.LFSListObjects(ctx, path, func(o storage.LFSObject) error { return q.item(o) })
			}
			return struct{}{}, err
		},
		"POST /lfs/gc": func(ctx context.Context, q *lfsRequest) (any, error) {
			path, err := q.optionalPath()
			if err != nil {
				return nil, err
			}
			o := storage.LFSCollectOptions{Path: path, DryRun: q.value("dry_run") == "true", Progress: q.progress,
				Removed: func(o storage.LFSRemoved) { _ = q.item(o) }} // the context ends if the client is gone
			if grace := q.value("grace"); grace != "" {
				if o.Grace, err = time.ParseDuration(grace); err != nil || o.Grace <= 0 {
					return nil, fault.New(fault.Invalid, "%q is not a grace", grace)
				}
			}
			return n.LFSCollect(ctx, o)
		},
		"POST /lfs/verify": func(ctx context.Context, q *lfsRequest) (any, error) {
			path, err := q.optionalPath()
			if err != nil {
				return nil, err
			}
			return n.LFSVerify(ctx, path, q.progress)
		},
		"POST /lfs/import": func(ctx context.Context, q *lfsRequest) (any, error) {
			path, err := q.path()
			if err != nil {
				return nil, err
			}
			dir := q.value("dir")
			if !filepath.IsAbs(dir) {
				return nil, fault.New(fault.Invalid, "%q is not an absolute path", dir)
			}
			return n.LFSImport(ctx, path, dir, q.progress)
		},
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			q := &lfsRequest{request: r, response: w}
			switch {
			case n == nil:
				q.end(nil, fault.New(fault.NotFound, "this server has no repositories"))
			case n.LFSObjects() == nil:
				q.end(nil, fault.New(fault.NotFound, "Git LFS is not supported by this server: lfs.enabled is false"))
			default:
				result, err := work(r.Context(), q)
				q.end(result, err)
			}
		})
	}
	return mux
}

// lfsRequest is a request about LFS objects. Its methods are safe for concurrent use.
type lfsRequest struct {
	request  *http.Request
	response http.ResponseWriter

	mu    sync.Mutex
	shown time.Time // the last line with progress
}

func (q *lfsRequest) value(key string) string { return q.request.URL.Query().Get(key) }

func (q *lfsRequest) path() (git.RepoPath, error) {
	path, err := git.ParseRepoPath(q.value("path"))
	return path, fault.Wrap(fault.Invalid, "invalid path", err)
}

// optionalPath is path, or nil if the request has none.
func (q *lfsRequest) optionalPath() (*git.RepoPath, error) {
	if q.value("path") == "" {
		return nil, nil
	}
	path, err := q.path()
	return &path, err
}

func (q *lfsRequest) item(v any) error {
	text, err := json.Marshal(v)
	return errors.Join(err, q.write(LFSEvent{Item: text}))
}

func (q *lfsRequest) progress(done, total int64, what string) {
	q.mu.Lock()
	isDue := time.Since(q.shown) >= lfsProgressInterval
	if isDue {
		q.shown = time.Now()
	}
	q.mu.Unlock()
	if isDue {
		_ = q.write(LFSEvent{Progress: &LFSProgress{done, total, what}}) // the context ends if the client is gone
		_ = http.NewResponseController(q.response).Flush()
	}
}

// end writes the last line.
func (q *lfsRequest) end(result any, err error) {
	text, encodeErr := json.Marshal(result)
	event := LFSEvent{Result: text}
	if err = errors.Join(err, encodeErr); err != nil {
		event = LFSEvent{Error: err.Error()}
	}
	_ = q.write(event) // the client has disconnected
}

func (q *lfsRequest) write(e LFSEvent) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return json.NewEncoder(q.response).Encode(e)
}

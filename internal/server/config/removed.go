package config

// removed has the keys and tables that packhorse does not have any more, and what to do instead. A text completes
// "KEY was removed: ". A key in an array of tables has no index: "mirror.requests".
var removed = map[string]string{
	"app.fast":       "no slots are reserved any more; delete the key",
	"app.max_slots":  "it belonged to slots = \"auto\"; set app.slots",
	"app.reserve":    "no slots are reserved any more; delete the key",
	"app.slow_start": "a worker that comes back gets its share at once; delete the key",
	"app.sticky":     "requests are split at random; delete the key",
}

package store

// Progress reports how far a command is. what is the repository or the key in work, and total is 0 if it is not known.
type Progress func(done, total int64, what string)

package api

import "net/http"

// leave is what a stop begins with; the node goes on to answer.
func (s *Server) leave(r *http.Request) (any, error) {
	if s.cfg.Leave == nil {
		return nil, &Error{Message: "this node cannot leave before it stops", Code: CodeRefused}
	}
	return empty{}, s.cfg.Leave(r.Context())
}

"""Runs the route "job" to its end: mqbridge.py ROUTE, as YAML"""
import sys

from mq_bridge import Route

Route.from_yaml_str(sys.argv[1], "job").run()

import pytest
from airflow.providers.common.compat.sdk import ParamValidationError
from airflow.sdk.definitions.param import ParamsDict
from memwal_airflow.run_params import includes, run_params

from memwal.jobs.due import JOBS


def test_the_form_offers_the_jobs_and_takes_no_others() -> None:
    params = run_params()
    schema = params.get_param("jobs").schema
    assert schema["examples"] == list(JOBS)
    assert set(schema["values_display"]) == set(JOBS)
    params["jobs"] = ["merge", "gc"]
    with pytest.raises(ParamValidationError):
        params["jobs"] = ["vacuum"]
    with pytest.raises(ParamValidationError):
        params["regions"] = ["all of them"]
    params["regions"] = ["00000000-0000-0000-0000-00000000000a"]


def test_without_parameters_a_run_is_about_everything_that_is_due() -> None:
    assert includes(run_params().dump(), "merge")
    assert includes({}, "merge")


def test_the_defaults_are_what_the_form_would_take() -> None:
    copied = ParamsDict()
    copied.update(run_params())
    assert copied.validate() == run_params().validate() == run_params().dump()


def test_a_run_may_be_about_some_jobs_only() -> None:
    assert includes({"jobs": ["gc"], "force": True}, "gc")
    assert not includes({"jobs": ["gc"], "force": True}, "merge")
